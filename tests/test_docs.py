"""Every command and snippet of the documents runs, and its links lead somewhere."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brctc.train import load_sweep
from tests.cli.commands import SMALL
from tests.data.sounds import write_digits, write_sentences

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
OWN_DATA = ROOT / "docs" / "own-data.md"  # one thing after the other: tests/cli/test_own_data.py

TINY = (
    *(change for change in SMALL if not change.startswith("corpus.options")),
    "model.encoder.first_layers=1",
    "model.encoder.second_layers=1",
    "decode.method=ctc-greedy",  # a beam search takes long where every hypothesis is as good as the others
)
TINY_DIGITS = (
    "corpus.options={source: data/audiomnist, train_strings: 12, dev_strings: 4, test_strings: 4, "
    "dev_speakers: 1, test_speakers: 2, max_digits: 4}"
)
TINY_GRID = "corpus.options={source: data/grid_s1, dev_sentences: 4, test_sentences: 4}"
SPEECH = {  # the recordings that a command needs, made of tones and noise
    "digit-strings": lambda folder: write_digits(folder / "data" / "audiomnist"),
    "grid": lambda folder: write_sentences(folder / "data" / "grid_s1"),
}

# How a documented command is run here: faster, or elsewhere than in the checkout.
COMMANDS = {
    "pip install .": None,  # test_wheel builds and installs it
    "make test": ["make", "-n", "test"],  # this is it
    "make demo": ["make", "-n", "demo"],
    "make lint": ["make", "-n", "lint"],
    "make bench": ["make", "-n", "bench"],
    "make sanitize": ["make", "-n", "sanitize"],
    "brctc demo": None,  # tests/cli/test_demo.py runs it
    "brctc train handwriting/brctc --out exp/weak --set stages.first.inter_risk.factor=3 "
    "stages.first.final_risk.factor=3": SMALL,
    "brctc compare digit-strings/transducer-vanilla digit-strings/transducer-brctc "
    "--out exp/digits-transducer": ("--set", TINY_DIGITS, *TINY),
    "brctc compare digit-strings/attention-vanilla digit-strings/attention-brctc "
    "--out exp/digits-attention": ("--set", TINY_DIGITS, *TINY, "model.attention.dim=16"),
    "brctc compare grid/transducer-vanilla grid/transducer-brctc --out exp/grid": (
        "--set",
        TINY_GRID,
        *TINY,
    ),
    # tests/cli/test_sweep.py runs a small one, and tests/train/test_sweep.py reads these
    "brctc sweep sweeps/digit-strings --out exp/online-digits": None,
    "brctc sweep sweeps/grid --out exp/online-grid": None,
    "python examples/path_groups.py": ["--output", "picture.png"],
    "python examples/gradients.py": ["--output", "picture.png"],
    "python benchmarks/ctc_loss.py": ["--quick", "--shape", "2,20,4,30"],
    "python -m pytest -m exhaustive tests/test_triton.py tests/test_triton_transducer.py "
    "tests/test_triton_compile.py": None,  # takes an hour
    "python benchmarks/ctc_loss.py --device cuda": None,  # needs a GPU: test_triton_compile.py sees it refuse
    "python benchmarks/exactness.py": ["--frames", "50"],
    "python benchmarks/streaming.py": ["--quick", "--minutes", "2", "--streams", "5"],
    "brctc latency exp/vanilla exp/early --out latency.html": None,  # tests/cli/test_sweep.py runs it
    # tests/cli/test_plot.py draws them
    "brctc plot exp/vanilla exp/early --utterance test-00003 --out alignment.png": None,
    "brctc plot exp/vanilla exp/early --evolution --out evolution.png": None,
}


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.M | re.S)


def documented_commands() -> list[str]:
    pages = [page for page in PAGES if page != OWN_DATA]
    lines = [line for page in pages for block in blocks(page, "bash") for line in block.splitlines()]
    return sorted({line.partition("#")[0].strip() for line in lines} - {""})


@pytest.mark.parametrize(
    "document", [page for page in DOCUMENTS if page != OWN_DATA], ids=lambda path: path.name
)
def test_python_snippets(document):
    snippets = blocks(document, "python")
    namespace: dict = {}
    for snippet in snippets:
        exec(compile(snippet, document.name, "exec"), namespace)
    assert snippets or document.name in ("math.md", "recipes.md", "training.md")


def test_the_recipe_reference_is_up_to_date():
    made = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_recipes.py"], capture_output=True, text=True, check=True
    )
    assert made.stdout == (ROOT / "docs" / "recipes.md").read_text()
    assert "| `steps` | whole number from 1 |" in made.stdout
    assert "[step, value] points" in made.stdout  # what stands below a field in the source


def test_the_documented_sweep_can_be_read(tmp_path):
    online = next(block for block in blocks(OWN_DATA, "yaml") if block.startswith("# mine-online.yaml"))
    (tmp_path / "mine-online.yaml").write_text(online)
    (sweep,) = blocks(ROOT / "docs" / "online.md", "yaml")
    (tmp_path / "sweep.yaml").write_text(sweep)
    cells = load_sweep(tmp_path / "sweep.yaml", tmp_path / "out").cells
    sizes = ("160+80", "160+160", "320+160", "320+320")
    expected = {f"{method}-{size}" for method in ("vanilla", "emission") for size in sizes}
    assert {cell.name for cell in cells} == expected


@pytest.mark.parametrize("command", documented_commands())
def test_command(command, tmp_path):
    extra = COMMANDS[command]  # a new command needs an entry
    if extra is None:
        return
    if command.startswith("make"):
        subprocess.run(extra, cwd=ROOT, check=True, capture_output=True)
        return
    program, first, *others = shlex.split(command)
    run_it = ["-m", "brctc", first] if program == "brctc" else [str(ROOT / first)]
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    if first == "compare":
        SPEECH[others[0].partition("/")[0]](tmp_path)
    run = subprocess.run(
        [sys.executable, *run_it, *others, *extra],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # a benchmark ends with 1 if a bar is missed: on a busy machine that is not an error of the code
    allowed = {0, 1} if "ctc_loss" in command or "streaming" in command else {0}
    assert run.returncode in allowed, run.stderr
    assert run.stdout or run.stderr  # a training's progress goes to stderr
    if "--output" in extra:
        assert (tmp_path / "picture.png").stat().st_size > 10_000
    if "path_groups" in command:
        assert "0.62" in run.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    assert "TABLE" not in page.read_text(), "a placeholder is left"
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.slow
def test_wheel_builds_and_imports_beside_torch_alone(tmp_path):
    """In an isolated build without torch; then beside torch and what torch itself needs."""
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".venv", ".git", "build", "*.so"))
    wheel = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(wheel, check=True, env=environment, capture_output=True)
    (built,) = tmp_path.glob("brctc-*.whl")
    alone = tmp_path / "alone"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(alone),
        str(built),
    ]
    subprocess.run(install, check=True, env=environment, capture_output=True)
    assert (alone / "brctc" / "py.typed").exists()
    recipes = {path.relative_to(alone / "brctc") for path in (alone / "brctc" / "recipes").rglob("*.yaml")}
    assert recipes == {path.relative_to(ROOT) for path in (ROOT / "recipes").rglob("*.yaml")} != set()
    assert "brctc = brctc.cli:main" in next(alone.glob("*.dist-info/entry_points.txt")).read_text()
    import torch

    packages = Path(torch.__file__).parent.parent
    needed = "torch torchgen functorch numpy numpy.libs sympy mpmath typing_extensions.py"
    needed += " jinja2 networkx fsspec filelock markupsafe"
    for name in [*needed.split(), *(path.name for path in packages.glob("torch-*.dist-info"))]:
        if (packages / name).exists():
            (alone / name).symlink_to(packages / name)
    code = "import brctc, torch; print(brctc.backends()); "
    code += "brctc.bayes_risk_ctc_loss(torch.randn(5, 4), torch.tensor([1]), 5, 1)"
    run = subprocess.run(
        [sys.executable, "-S", "-s", "-c", code],
        env={**os.environ, "PYTHONPATH": str(alone)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "'cpu': 'ok" in run.stdout
