"""Installs the manylinux wheel of a folder into a new environment, beside this one's torch, and tries it.

python tests/try_wheel.py dist
"""

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import torch
from packaging import tags

BESIDE_TORCH = "torch torchgen functorch numpy numpy.libs sympy mpmath typing_extensions.py jinja2 networkx"
BESIDE_TORCH += " fsspec filelock markupsafe"


def find_wheel(folder: Path) -> Path:
    """The newest one for this Python."""
    here = {str(tag) for tag in tags.sys_tags()}
    found = sorted(folder.glob("brctc-*.whl"), key=lambda path: path.stat().st_mtime)
    for path in reversed(found):
        python, abi, platforms = path.stem.split("-")[-3:]
        if any(f"{python}-{abi}-{platform}" in here for platform in platforms.split(".")):
            assert "manylinux" in platforms, f"{path.name} is for this machine alone"
            return path
    raise SystemExit(f"no wheel for this Python in {folder}: {[path.name for path in found]}")


def main() -> None:
    wheel = find_wheel(Path(sys.argv[1]))
    packages = Path(torch.__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        (site,) = Path(folder).glob("lib/python*/site-packages")
        for name in [*BESIDE_TORCH.split(), *(path.name for path in packages.glob("torch-*.dist-info"))]:
            if (packages / name).exists():
                (site / name).symlink_to(packages / name)
        start = time.monotonic()
        install = [python, "-m", "pip", "install", "--quiet", "--no-deps", wheel]
        subprocess.run(install, check=True)
        took = f"{time.monotonic() - start:.1f} s"
        print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) installed in {took}")
        subprocess.run([python, Path(__file__).with_name("wheel_check.py")], check=True, cwd=folder)


if __name__ == "__main__":
    main()
