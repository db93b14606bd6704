"""Every system of the paper, by the commands of recipes/paper/README.md."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from brctc.cli import parse
from brctc.cli.shared import find_recipe
from brctc.data import Prepared
from brctc.train import load_recipe, load_sweep
from tests.cli.commands import brctc
from tests.data.published import (
    DEV,
    MEETING,
    NET,
    YOUTUBE,
    audio,
    segment,
    write_aishell1,
    write_aishell2,
    write_iwslt14,
    write_librispeech,
    write_must_c,
    write_wenetspeech,
)

RECIPES = Path(__file__).parents[2] / "recipes"
README = RECIPES / "paper" / "README.md"


def documented() -> list[str]:
    """The commands of the README, without torchrun before them."""
    text = README.read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"\| `(brctc .*)` \|$", text, re.M)
    return [re.sub(r"^torchrun .* -m brctc ", "brctc ", line) for line in lines]


def test_every_recipe_is_in_the_readme():
    text = README.read_text()
    for path in (RECIPES / "paper").glob("*.yaml"):
        if not path.name.startswith("base"):
            assert re.search(rf"\bpaper/{path.stem}[ `]", text), path.stem
    for path in (RECIPES / "sweeps").glob("paper-*.yaml"):
        assert f"sweeps/{path.stem} " in text


@pytest.mark.parametrize("command", documented())
def test_commands_parse(command):
    """Options are known, recipes are there, runs are where another command has put them."""
    _, name, *words = shlex.split(command)
    parsed = parse(name, words)
    if name in ("train", "compare"):
        for recipe in parsed.recipes if name == "compare" else (parsed.recipe,):
            load_recipe(find_recipe(recipe))
    elif name == "sweep":
        assert load_sweep(find_recipe(parsed.sweep), parsed.out).cells
    elif name == "prepare":
        assert parsed._corpus(parsed.what[0]).kind == parsed.what[0]
    else:
        runs = parsed.runs if name != "tune" else (parsed.run_dir,)
        assert {*map(str, runs)} <= made()


def made() -> set[str]:
    """Where `brctc compare` and `brctc sweep` put their runs and results."""
    found = set()
    for command in documented():
        _, name, *words = shlex.split(command)
        if name == "compare":
            parsed = parse(name, words)
            found |= {str(parsed.out / find_recipe(recipe).stem) for recipe in parsed.recipes}
            found.add(str(parsed.out / "report.json"))
        elif name == "sweep":
            parsed = parse(name, words)
            cells = load_sweep(find_recipe(parsed.sweep), parsed.out).cells
            found |= {str(parsed.out / cell.name) for cell in cells}
    return found


def test_prepared_as_recipes_want_it():
    """What the README prepares is what a recipe would prepare."""
    wanted = {}
    for path in (RECIPES / "paper").glob("[!b]*.yaml"):
        recipe = load_recipe(path)
        wanted[recipe.corpus.prepared] = recipe
    commands = [shlex.split(command) for command in documented() if command.startswith("brctc prepare")]
    assert len(commands) == len(wanted)
    for _, name, *words in commands:
        parsed = parse(name, words)
        recipe = wanted[str(parsed.out)]
        assert parsed._corpus(parsed.what[0]) == recipe.corpus
        assert recipe.features in (None, parsed.features)


# --- miniatures ---

WORDS = ("打开音乐", "关闭音乐", "音乐打开", "打开", "关闭", "打开关闭")
SMALL = {"dim": 16, "heads": 2, "feed_forward_dim": 16, "dropout": 0.0}
LAYERS = {"first_layers": 1, "second_layers": 1, "kernel_size": 3, "subsampling_channels": 4}
ATTENTION = {**SMALL, "layers": 1}
SHRUNK = {
    "conformer": {**SMALL, **LAYERS},
    "emformer": {**SMALL, "layers": 2, "subsampling_channels": 4},
    "legonn": {**SMALL, "first_layers": 1, "second_layers": 1},
    "attention": ATTENTION,
    "transducer": {"prediction_dim": 8, "joint_dim": 8},
}


def shrink(name: str) -> dict:
    """A recipe of the paper, small and short; everything else is as it is."""
    recipe = load_recipe(RECIPES / "paper" / f"{name}.yaml")
    model, small = recipe.model, {"base": str(RECIPES / "paper" / f"{name}.yaml")}
    small["model"] = {
        "encoder": SHRUNK[model.encoder.kind],
        "decoders": {decoder: SHRUNK[config.kind] for decoder, config in model.decoders.items()},
        "upper_encoders": {upper: {"encoder": SHRUNK["conformer"]} for upper in model.upper_encoders},
    }
    small["stages"] = {stage: {"epochs": 1} for stage in recipe.stages}
    for stage, config in recipe.stages.items():
        ctc = [term for term, loss in config.losses.items() if loss.kind == "ctc"]
        small["stages"][stage]["losses"] = {term: {"infeasible": "skip"} for term in ctc}
    small["tokens"] = {text: {"size": 60} for text, config in recipe.tokens.items() if config.kind == "bpe"}
    small["batch"] = {"tokens": 300} if recipe.features is None else {"seconds": 12}
    small["workers"] = 0
    small["monitor"] = {"dev_utterances": 2, "snapshot_steps": [0, 1], "tensorboard": False}
    small["decode"] = {"beam": 2}
    return small


def write_recipes(folder: Path, *names: str) -> None:
    """Under the names that the README's commands have: a file is taken before what is shipped."""
    (folder / "paper").mkdir()
    for name in names:
        (folder / "paper" / name).write_text(yaml.safe_dump(shrink(name)))


def mandarin_audios() -> list[dict]:
    train = [segment(f"Y01_S{n}", 1.2 * n, 1.2 * n + 1.1, text, "L") for n, text in enumerate(WORDS)]
    held_out = ((DEV, "D01", "DEV"), (NET, "N01", "TEST_NET"), (MEETING, "T01", "TEST_MEETING"))
    others = [
        audio(path, *(segment(f"{name}_S{n}", 2 * n, 2 * n + 1.5, WORDS[n], subset) for n in range(2)))
        for path, name, subset in held_out
    ]
    return [audio(YOUTUBE, *train), *others]


def write_corpora(folder: Path) -> None:
    """In data, as the README has them."""
    speakers = {"train": "S0002", "dev": "S0724", "test": "S0764"}
    lines = {
        f"{split}/{speaker}/BAC009{speaker}W0{n}": text
        for split, speaker in speakers.items()
        for n, text in enumerate(WORDS if split == "train" else WORDS[:2])
    }
    write_aishell1(folder / "aishell1" / "data_aishell", lines)
    (folder / "aishell1.ctm").write_text(ctm("BAC009S0764W00", "打开", "音乐"), encoding="utf-8")
    train = {f"C0001/IC0001W000{n}": text for n, text in enumerate(WORDS)}
    write_aishell2(folder / "aishell2", train, "打开音乐")
    (folder / "aishell2.ctm").write_text(ctm("AT0012W0001", "打开", "音乐"), encoding="utf-8")
    write_wenetspeech(folder / "wenetspeech", mandarin_audios())
    english = ("THE FIRST LINE", "A SECOND LINE", "THE THIRD ONE")
    parts = {"train-clean-100": "1-10", "dev-clean": "2-20", "test-clean": "3-30", "test-other": "4-40"}
    write_librispeech(folder / "LibriSpeech", {part: {chapter: english} for part, chapter in parts.items()})
    write_must_c(folder / "must-c-v2")
    for pair in ("de-en", "es-en"):
        write_iwslt14(folder / "iwslt14" / pair, pair)


def ctm(id: str, *words: str) -> str:
    return "".join(f"{id} 1 {0.4 * n:.2f} 0.40 {word} 1.0\n" for n, word in enumerate(words))


QUICK = {
    "evaluate": ("--beams", "2", "--repeats", "1", "--batch", "1"),
    "prepare": ("--jobs", "1"),
    "tune": ("--limit", "2"),
}


def run(folder: Path, command: str) -> None:
    _, name, *words = shlex.split(command)
    done = brctc(folder, name, *words, *QUICK.get(name, ()))
    assert done.code == 0, f"{command}\n{done.err}"


@pytest.fixture
def folder(tmp_path):
    write_corpora(tmp_path / "data")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corpus", "system"),
    [
        ("aishell1", "aishell1-attention"),
        ("aishell2", "aishell2-transducer"),
        ("wenetspeech", "wenetspeech-attention"),
        ("librispeech", "librispeech-transducer"),
        ("must-c-v2", "must-c-v2"),
        ("iwslt14", "iwslt14-de-en"),
        ("iwslt14", "iwslt14-es-en"),
    ],
)
def test_from_the_published_files_to_the_report(folder, corpus, system):
    arms = [f"{system}-{arm}" for arm in ("vanilla", "brctc")]
    runs = [f"exp/{system}/{arm}" for arm in arms]
    write_recipes(folder, *arms)
    out = load_recipe(folder / "paper" / arms[0]).corpus.prepared
    (prepare,) = [
        command for command in documented() if out in command.split() and f"prepare {corpus} " in command
    ]
    (compare,) = [
        command for command in documented() if f"compare paper/{arms[0]} paper/{arms[1]} " in command
    ]
    run(folder, prepare)
    for arm, directory in zip(arms, runs, strict=True):
        run(folder, f"brctc train paper/{arm} --out {directory}")
    if corpus == "aishell1":
        run(folder, compare)
    else:  # its parts, without the speed of many beams
        split = compare.partition(" --split ")[2] or "test"
        out = f"exp/{system}/report"
        run(folder, f"brctc evaluate {' '.join(runs)} --split {split} --out {out}.json")
        run(folder, f"brctc report {' '.join(runs)} --evaluation {out}.json --out {out}.html")
    for command in documented():  # other test sets, weights, figures
        if not command.startswith("brctc train") and {*runs} & {*command.split()}:
            run(folder, command)
    page = (folder / "exp" / system / "report.html").read_text()
    assert all(arm in page for arm in arms)
    numbers = json.loads((folder / "exp" / system / "report.json").read_text())
    assert [found["trims"] for found in numbers["systems"]] == [False, True]


@pytest.mark.slow
def test_online(folder):
    """The sweep of Aishell-1 at one chunk, and Fig. 7; models of Aishell-2 on one of its devices."""
    both = ("vanilla", "brctc")
    write_recipes(folder, *(f"aishell{n}-online-{arm}" for n in (1, 2) for arm in both))
    (folder / "sweeps").mkdir()
    sweep = {
        "base": str(RECIPES / "sweeps" / "paper-aishell1.yaml"),
        "recipe": "../paper/aishell1-online-brctc",
        "blocks": [{"chunks_ms": [320], "right_contexts": [1], "methods": list(both)}],
    }
    (folder / "sweeps" / "paper-aishell1").write_text(yaml.safe_dump(sweep))
    wanted = (
        "data/prepared/aishell1-online",
        "brctc sweep sweeps/paper-aishell1",
        "data/prepared/aishell2-online",
        "--out fig7.png",
    )
    for part in wanted:
        (command,) = [command for command in documented() if part in command]
        run(folder, command)
    numbers = json.loads((folder / "exp" / "paper-aishell1" / "report.json").read_text())
    assert [trial["online"]["dcl_ms"] for trial in numbers["trials"]] == [480, 480]
    assert (folder / "fig7.png").stat().st_size > 10_000
    (android,) = Prepared(folder / "data" / "prepared" / "aishell2-online", "android").examples
    assert len(android.word_times) == 2
    for arm in both:
        run(folder, f"brctc train paper/aishell2-online-{arm} --out exp/{arm}")
    run(folder, "brctc latency exp/vanilla exp/brctc --split android --out latency.html")
    numbers = json.loads((folder / "latency.json").read_text())
    assert [trial["online"]["dcl_ms"] for trial in numbers["trials"]] == [320, 320]
