"""The command line as users and their scripts know it: who changes it, changes it here on purpose."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from brctc.cli import COMMANDS, main
from brctc.cli import __file__ as package
from tests.cli.commands import brctc

# positionals first; "!" is behind what is required
SURFACE = {
    "demo": ["--out", "--set"],
    "prepare": [
        "MANIFEST ... | CORPUS!", "--out!", "--split", "--store", "--skip-bad", "--speeds", "--subsampling",
        "--source", "--set", "--jobs", "--verify", "--tokens.kind", "--tokens.size", "--features.num-bins",
        "--features.frame-length-ms", "--features.frame-shift-ms", "--features.sample-rate",
        "--features.low-hz", "--features.high-hz",
        "--features.dither", "--features.pitch", "--features.pitch-look-ahead-frames",
    ],
    "reference-times": [
        "MANIFEST!", "--out!", "--replace", "--from-ctm", "--from-textgrids", "--tier", "--skip-bad",
    ],
    "train": [
        "RECIPE!", "--out", "--resume", "--fall-back", "--set", "--dry-run", "--device", "--gpus", "--hours",
        "--pairs",
    ],
    "decode": [
        "MODEL!", "FILE ...", "--manifest", "--prepared", "--split", "--method", "--beam", "--ctc-weight",
        "--length-reward", "--skip-blanks", "--nbest", "--transcript", "--batch-size", "--jobs", "--jsonl",
        "--ctm", "--srt", "--textgrid",
    ],
    "stream": ["MODEL!", "AUDIO ...", "--fast", "--microphone"],
    "serve": [
        "MODEL ...!", "--host", "--port", "--wyoming-port", "--token-file", "--open", "--certificate",
        "--key", "--workers", "--threads", "--max-streams", "--max-message-bytes", "--max-file-bytes",
        "--max-seconds", "--idle-seconds", "--max-results", "--drain-seconds", "--silence-seconds",
        "--pause-seconds", "--longest-seconds",
    ],
    "tune": [
        "RUN!", "--prepared", "--split", "--ctc-weights", "--length-rewards", "--beam", "--limit", "--jobs",
        "--keep", "--out",
    ],
    "evaluate": [
        "RUN ...!", "--prepared", "--split", "--beam", "--limit", "--repeats", "--rtf-share", "--beams",
        "--batch", "--skip-blanks", "--jobs", "--out",
    ],
    "latency": ["RUN ...!", "--prepared", "--split", "--limit", "--jobs", "--out"],
    "report": ["RUN ...!", "--out", "--evaluation"],
    "plot": ["RUN ...!", "--utterance", "--split", "--evolution", "--attention", "--out"],
    "explore": ["RUN", "--utterance", "--prepared", "--split", "--out"],
    "compare": ["RECIPE ...!", "--out!", "--split", "--rtf-share", "--skip-blanks", "--ray", "--set"],
    "sweep": [
        "SWEEP!", "--out!", "--target-latency-ms", "--split", "--at-once", "--ray", "--limit", "--set",
    ],
    "export": ["MODEL!", "--out!", "--for", "--int8", "--set"],
    "gpu-check": ["--out", "--minutes"],
}  # fmt: skip
DEFAULTS = {
    "demo": {"--out": "exp/demo"},
    "prepare": {
        "--store": "features",
        "--speeds": "0.9 1.0 1.1",
        "--subsampling": "4",
        "--jobs": "all cores",
    },
    "reference-times": {"--tier": "words"},
    "train": {"--device": "all that are known", "--gpus": "1"},
    "decode": {
        "--split": "test",
        "--beam": "the recipe's",
        "--nbest": "1",
        "--batch-size": "1",
        "--jobs": "1",
    },
    "serve": {"--host": "127.0.0.1", "--port": "8000", "--wyoming-port": "not spoken", "--workers": "1"},
    "tune": {"--split": "dev", "--beam": "the recipe's", "--limit": "the recipe's, or all", "--jobs": "1"},
    "evaluate": {
        "--split": "test",
        "--beam": "the recipe's",
        "--limit": "all",
        "--repeats": "3",
        "--jobs": "1",
    },
    "latency": {"--split": "test", "--limit": "all", "--jobs": "1", "--out": "latency.html"},
    "report": {"--out": "report.html", "--evaluation": "measure now"},
    "plot": {"--utterance": "one of medium length", "--split": "test", "--out": "alignment.png"},
    "explore": {
        "--utterance": "one of medium length",
        "--prepared": "the runs'",
        "--split": "test",
        "--out": "explore.html",
    },
    "export": {"--for": "bundle"},
    "gpu-check": {"--out": "gpu-check.json", "--minutes": "10.0"},
    "sweep": {"--split": "the test set", "--at-once": "2", "--limit": "all"},
}


def describe(text):
    """What a help text says of each positional and option, by their names."""
    lines = [line[2:-1].rstrip() for line in text.splitlines() if line.startswith("│")]
    found, name = {}, ""
    for line in lines:
        if start := re.match(r"--[\w.-]+|[A-Z]{2}.*?(?=  |$)", line):
            name = start[0]
        elif not line.startswith(" "):
            name = ""  # -h, or what is said of a group
        found[name] = f"{found.get(name, '')} {line.strip()}"
    return {name: text for name, text in found.items() if name}


def test_every_command_is_here():
    assert list(SURFACE) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_options(tmp_path, name):
    found = describe(brctc(tmp_path, name, "--help").out)
    required = {option.rstrip("!"): option.endswith("!") for option in SURFACE[name]}
    assert list(found) == list(required)
    assert {option: "(required)" in text for option, text in found.items()} == required
    for option, default in DEFAULTS.get(name, {}).items():
        assert f"(default: {default})" in found[option]


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if any("!" in option for option in SURFACE[name])]
)
def test_what_is_required_is_asked_for(capsys, name):
    try:
        code = main([name])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err
    assert "Traceback" not in said.err


def test_commands_import_no_commands():
    commands = {f"brctc.cli.{name.replace('-', '_')}" for name in COMMANDS}
    files = list(Path(package).parent.glob("*.py"))
    assert len(files) > len(commands)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert not imported & commands, f"{path.name} imports {imported & commands}"


def test_the_overview_imports_no_command():
    """Beside what `import brctc` loads: it is there at once."""
    code = (
        "import sys, brctc; before = set(sys.modules); from brctc.cli import main; main(['--help']); "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before}, file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    outside = set(found.stderr.split()) - {"brctc"} - set(sys.stdlib_module_names)
    assert outside == set()
    assert "usage: brctc" in found.stdout
