"""The source distribution holds what is named in pyproject.toml, and nothing that lies around."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
NAMED = {
    ".": {"CMakeLists.txt", "LICENSE", "README.md", "constraints.txt", "pyproject.toml"},
    "native": {".cpp", ".h"},
    "recipes": {".yaml", ".md"},
    "src": {".py", ".pyi", ".css", ".html", ".js"},
}
LYING_AROUND = (
    "secret.txt",
    "exp/model.safetensors",
    "native/kernels.o",
    "recipes/mine.yaml~",
    "src/brctc/notes.txt",
    "src/brctc/report/report.html",
    "src/brctc/_native.so",
)


@pytest.mark.slow
def test_untracked_files_stay_at_home(tmp_path):
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path / "backend")]
    subprocess.run([*install, "scikit-build-core"], check=True, env=environment, capture_output=True)
    source = tmp_path / "source"
    source.mkdir()
    for name in NAMED["."]:
        shutil.copy(ROOT / name, source)
    for folder in ("native", "recipes", "src", "tests", "docs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in LYING_AROUND:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("not for others")
    environment["PYTHONPATH"] = str(tmp_path / "backend")
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], check=True, cwd=source, env=environment)
    (built,) = tmp_path.glob("brctc-*.tar.gz")
    with tarfile.open(built) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()} - {"PKG-INFO"}
    expected = {*NAMED["."], "src/brctc/py.typed"}
    for folder in ("native", "recipes", "src"):
        files = (path for path in (ROOT / folder).rglob("*") if path.suffix in NAMED[folder])
        expected |= {path.relative_to(ROOT).as_posix() for path in files}
    assert found == expected
