"""Every command and snippet of the documents runs, and its links lead somewhere."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from brctc.train import load_sweep
from tests.cli.commands import SMALL
from tests.data.sounds import write_digits, write_sentences
from tests.documents import DOCUMENTS, EXPORT, EXTENDING, INTEGRATIONS, OWN_DATA, PAGES, ROOT, blocks

TINY = (
    *(change for change in SMALL if not change.startswith("corpus.")),
    "corpus.prepared=prepared",
    "model.encoder.first_layers=1",
    "model.encoder.second_layers=1",
    "decode.method=ctc-greedy",  # a beam search takes long where every hypothesis is as good as the others
)
TINY_DIGITS = [
    f"corpus.{key}={value}"
    for key, value in {
        "train_strings": 12,
        "dev_strings": 4,
        "test_strings": 4,
        "dev_speakers": 1,
        "test_speakers": 2,
        "max_digits": 4,
    }.items()
]
TINY_GRID = ["corpus.dev_sentences=4", "corpus.test_sentences=4"]
SPEECH = {  # the recordings that a command needs, made of tones and noise
    "digit-strings": lambda folder: write_digits(folder / "data" / "audiomnist"),
    "grid": lambda folder: write_sentences(folder / "data" / "grid_s1"),
}
BARS_MET = re.compile(r"\d+ of \d+ bars met\n$")


TORCHRUN, TRAIN = "torchrun", "-m brctc train mine.yaml --out exp/mine"


class Elsewhere(NamedTuple):
    """A command that is not run here, and why."""

    reason: str


SERVE = Elsewhere("tests/serve/test_documented.py runs it")
TRANSLATION = Elsewhere("tests/cli/test_translation.py runs it")

# How a documented command is run here: faster, or elsewhere than in the checkout.
COMMANDS = {
    "pip install .": Elsewhere("test_wheel_builds_and_imports_beside_torch_alone installs it"),
    "make test": ["make", "-n", "test"],  # this is it
    "make test-slow": ["make", "-n", "test-slow"],
    "make test-integrations": ["make", "-n", "test-integrations"],  # brings other frameworks
    "make demo": ["make", "-n", "demo"],
    "make lint": ["make", "-n", "lint"],
    "make bench": ["make", "-n", "bench"],
    "make sanitize": ["make", "-n", "sanitize"],
    "make wheels": ["make", "-n", "wheels"],
    "brctc train handwriting/brctc --out exp/weak --set stages.first.losses.middle.risk.factor=3 "
    "stages.first.losses.final.risk.factor=3": SMALL,
    "brctc compare digit-strings/transducer-vanilla digit-strings/transducer-brctc "
    "--out exp/digits-transducer": ("--set", *TINY_DIGITS, *TINY),
    "brctc compare digit-strings/attention-vanilla digit-strings/attention-brctc "
    "--out exp/digits-attention": ("--set", *TINY_DIGITS, *TINY, "model.decoders.attention.dim=16"),
    "brctc compare grid/transducer-vanilla grid/transducer-brctc --out exp/grid": (
        "--set",
        *TINY_GRID,
        *TINY,
    ),
    "brctc sweep sweeps/digit-strings --out exp/online-digits": Elsewhere(
        "tests/cli/test_sweep.py runs a small one, tests/train/test_sweep.py reads this one"
    ),
    "brctc sweep sweeps/grid --out exp/online-grid": Elsewhere("as sweeps/digit-strings"),
    "python examples/path_groups.py": ["--output", "picture.png"],
    "python examples/gradients.py": ["--output", "picture.png"],
    "python benchmarks/ctc_loss.py": ["--quick", "--shape", "2,20,4,30"],
    "python -m pytest -m exhaustive tests/test_triton.py tests/test_triton_transducer.py "
    "tests/test_triton_compile.py": Elsewhere("takes an hour"),
    "python benchmarks/ctc_loss.py --device cuda": Elsewhere("needs a GPU; without one it refuses"),
    "python benchmarks/exactness.py": ["--frames", "50"],
    "python benchmarks/data_scale.py": ["--quick"],
    "python benchmarks/train_step.py --digits data/audiomnist": ["--quick"],
    "python benchmarks/streaming.py": ["--quick", "--minutes", "2", "--streams", "5"],
    "brctc latency exp/vanilla exp/early --out latency.html": Elsewhere("tests/cli/test_sweep.py runs it"),
    "brctc plot exp/vanilla exp/early --utterance test-00003 --out alignment.png": Elsewhere(
        "tests/cli/test_plot.py draws it"
    ),
    "brctc plot exp/vanilla exp/early --evolution --out evolution.png": Elsewhere(
        "tests/cli/test_plot.py draws it"
    ),
    "brctc explore --out explore.html": (),
    "brctc explore exp/early --utterance test-00003 --out explore.html": Elsewhere(
        "tests/cli/test_explore.py writes one of a run"
    ),
    # docs/serve.md
    "brctc serve exp/online": SERVE,
    "brctc serve exp/vanilla exp/early": SERVE,
    "brctc serve exp/online --workers 4": SERVE,
    "python benchmarks/serving.py --quick": (
        "--streams",
        "2",
        "--seconds",
        "3",
        "--drops",
        "3",
        "--bad",
        "1",
    ),
    "BRCTC_MODELS=exp/online BRCTC_REPLICAS=4 serve run serve_ray:app": Elsewhere(
        "tests/serve/test_ray_serve.py runs it with a cluster of its own"
    ),
    # docs/translation.md
    "brctc compare multi30k/mt-vanilla multi30k/mt-brctc --out exp/multi30k-mt": TRANSLATION,
    "brctc compare multi30k/st-vanilla multi30k/st-brctc --out exp/multi30k-st": TRANSLATION,
    "brctc tune exp/multi30k-mt/mt-brctc --limit 200 --keep": TRANSLATION,
    "brctc decode exp/multi30k-mt/mt-brctc news.txt --beam 5 --ctc-weight 0.2 --nbest 5 --jsonl news.jsonl": (
        TRANSLATION
    ),
    "brctc decode exp/multi30k-st/st-brctc talk.wav --transcript": TRANSLATION,
    # docs/scale.md and docs/extending.md
    "brctc train paper/aishell1-attention-brctc --dry-run": (),
    "brctc train mine.yaml --dry-run --device a100 --gpus 8": Elsewhere("tests/cli/test_train.py runs such"),
    "brctc train mine.yaml --dry-run --hours 300": Elsewhere("tests/train/test_cost.py gives hours"),
    "brctc gpu-check --out gpu-check.json": Elsewhere("tests/cli/test_gpu_check.py runs it"),
    "brctc train mine.yaml --out exp/mine": Elsewhere("tests/cli/test_own_data.py trains such a recipe"),
    f"{TORCHRUN} --standalone --nproc-per-node 8 --max-restarts 3 {TRAIN}": Elsewhere(
        "tests/train/test_elastic.py does so with two processes"
    ),
    f"{TORCHRUN} --nnodes 4 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d "
    f"--rdzv-endpoint first-host:29500 {TRAIN}": Elsewhere("needs four machines"),
    "ray start --head": Elsewhere("tests/train/test_ray.py starts a cluster of its own"),
    "brctc sweep sweeps/digit-strings --out exp/online --ray auto": Elsewhere(
        "tests/cli/test_sweep.py runs a small one on a cluster of its own"
    ),
    "brctc --import my_rooms train toy.yaml --out exp/toy": Elsewhere("tests/test_extending.py runs it"),
}


def test_a_benchmark_that_fails_is_no_missed_bar():
    """Both end with 1: what tells them apart is that everything was measured."""
    assert BARS_MET.search("MISSED speed: 1.00 (>= 2)\n\n4 of 5 bars met\n")
    assert not BARS_MET.search("met    speed: 3.00 (>= 2)\nTraceback (most recent call last):\n")


def documented_commands() -> list[str]:
    pages = [page for page in PAGES if page not in (OWN_DATA, EXPORT)]
    lines = [line for page in pages for block in blocks(page, "bash") for line in block.splitlines()]
    return sorted({line.partition("#")[0].strip() for line in lines} - {""})


@pytest.mark.parametrize(
    "document",
    [page for page in DOCUMENTS if page not in (OWN_DATA, EXPORT, EXTENDING, INTEGRATIONS)],
    ids=lambda path: path.name,
)
def test_python_snippets(document):
    snippets = blocks(document, "python")
    namespace: dict = {}
    for snippet in snippets:
        exec(compile(snippet, document.name, "exec"), namespace)
    assert snippets or document.name in ("math.md", "recipes.md", "results.md", "scale.md", "translation.md")


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


SLOW = (
    "python benchmarks/data_scale.py",  # processes that are killed and started again
    "python benchmarks/serving.py --quick",  # a server, and clients in real time
)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow if command in SLOW else ())
        for command in documented_commands()
    ],
)
def test_command(command, tmp_path):
    extra = COMMANDS[command]  # a new command needs an entry
    if isinstance(extra, Elsewhere):
        pytest.skip(extra.reason)
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
    if run.returncode == 1 and first.startswith("benchmarks/"):
        # it has measured everything, and a bar was missed: on a busy machine that is no error of the code
        assert BARS_MET.search(run.stdout), run.stderr
        assert "Traceback" not in run.stderr
    else:
        assert run.returncode == 0, run.stderr
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
    parts = Path("brctc", "report", "explore")
    assert {path.name for path in (ROOT / "src" / parts).iterdir() if path.suffix != ".pyc"} - {
        "__pycache__"
    } <= {path.name for path in (alone / parts).iterdir()}
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
