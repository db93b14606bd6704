"""What all commands have in common: help, errors, exit codes."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import brctc as package
from brctc.cli import COMMANDS, missing_packages
from brctc.cli.shared import find_recipe, parse_assignments, recipes_directory, table
from tests.cli.commands import brctc


def test_overview_names_every_command(tmp_path):
    found = brctc(tmp_path, "--help")
    assert found.code == 0
    for name, what in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(what)}$", found.out, re.M)
    without = brctc(tmp_path)
    assert (without.code, without.out) == (2, found.out)


def test_python_m():
    """In an interpreter of its own, as a user and torchrun start it."""
    command = [sys.executable, "-m", "brctc", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == f"brctc {metadata.version('brctc')}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help(tmp_path, name):
    found = brctc(tmp_path, name, "--help")
    assert found.code == 0, found.err
    text = found.out
    assert text.startswith(f"usage: brctc {name} ")
    assert f"\nExamples:\n  brctc {name}" in text
    assert max(map(len, text.splitlines())) <= 100
    described = text.partition("Examples:")[2].partition("╭")[2]
    of_library = len(re.findall(r"--(?:tokens.size|features.pitch-look-ahead-frames)", described))
    assert "None" not in described.replace("default: None", "", of_library)
    for option in re.findall(r"^│ (--[\w.-]+)", described, re.M):
        after = described.partition(f"│ {option}")[2].partition("│ --")[0].partition("╰")[0]
        if not option.startswith(("--tokens.", "--features.")):
            assert re.search(r"[a-z]{3}.*\.", after, re.S), f"{option} is not explained"
    options = {
        "train": "--resume",
        "decode": "--method",
        "stream": "--fast",
        "demo": "--set",
        "serve": "--port",
    }
    assert options.get(name, "--out") in text


def test_defaults_are_shown(tmp_path):
    assert "(default: exp/demo)" in brctc(tmp_path, "demo", "--help").out
    assert "(default: the recipe's)" in brctc(tmp_path, "decode", "--help").out


def test_unknown_command(tmp_path):
    found = brctc(tmp_path, "trian")
    assert found == (2, "", "brctc: there is no command 'trian': did you mean 'train'?\n")
    assert "there are demo, prepare" in brctc(tmp_path, "xyz").err


def test_unknown_option(tmp_path):
    found = brctc(tmp_path, "train", "x.yaml", "--out", "run", "--resum")
    assert found.code == 2
    assert "--resume" in found.err
    assert "Traceback" not in found.err


def test_an_error_is_a_line(tmp_path):
    found = brctc(tmp_path, "decode", "nowhere", "a.wav")
    assert found == (2, "", "brctc decode: nowhere holds no model: there is no nowhere/model.json\n")
    debug = brctc(tmp_path, "decode", "nowhere", "a.wav", BRCTC_DEBUG="1")
    assert debug.code == 1
    assert "Traceback" in debug.err


def test_files_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    found = brctc(tmp_path, "prepare", "handwriting", "--out", "file/inside")
    assert found.code == 2
    assert found.err == "brctc prepare: file/inside: Not a directory\n"


def test_nothing_is_missing_here():
    assert missing_packages() == []


def test_the_extra_is_asked_for_at_the_door(tmp_path):
    """Beside torch alone, as `pip install brctc` leaves it."""
    import torch

    packages = Path(torch.__file__).parent.parent
    source, native = Path(package.__file__).parent, packages / "brctc"
    needed = "torch torchgen functorch numpy numpy.libs sympy mpmath typing_extensions.py jinja2 networkx"
    for name in [*needed.split(), "fsspec", "filelock", "markupsafe"]:
        if (packages / name).exists():
            (tmp_path / name).symlink_to(packages / name)
    for path in packages.glob("brctc-*.dist-info"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "brctc").mkdir()
    for path in [*source.iterdir(), *native.glob("_native*.so")]:
        if not (tmp_path / "brctc" / path.name).exists():
            (tmp_path / "brctc" / path.name).symlink_to(path)
    found = subprocess.run(
        [sys.executable, "-S", "-s", "-m", "brctc", "train", "x.yaml", "--out", "run"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert found.stderr.startswith(
        "brctc train needs the extra asr: in its checkout, pip install '.[asr]' (missing: "
    )
    assert "tyro" in found.stderr
    assert found.stderr.count("\n") == 1


def test_assignments():
    given = (("a.b=1", "c=[1, x, 1e-1]"), ("d=3e-4", "e=", "f=a=b"))
    assert parse_assignments(given) == {"a.b": 1, "c": [1, "x", 0.1], "d": 3e-4, "e": None, "f": "a=b"}
    for wrong, message in (("a", "key=value, got 'a'"), ("=1", "key=value"), ("a=[", "not YAML")):
        with pytest.raises(ValueError, match=message):
            parse_assignments(((wrong,),))


def test_recipes_that_come_with_brctc(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = recipes_directory() / "handwriting" / "brctc.yaml"
    assert ours.is_file()
    for name in ("handwriting/brctc", "handwriting/brctc.yaml", "recipes/handwriting/brctc.yaml"):
        assert find_recipe(name) == ours
    with pytest.raises(ValueError, match=r"no recipe handwriting/brtc; did you mean handwriting/brctc\?"):
        find_recipe("handwriting/brtc")
    with pytest.raises(ValueError, match=r"brctc brings: .*handwriting/vanilla"):
        find_recipe("zzz.yaml")
    (tmp_path / "mine.yaml").touch()
    assert find_recipe("mine.yaml") == Path("mine.yaml")


def test_table():
    assert table(("split", "n"), [("a", 10), ("bcdefg", 5)]) == "split    n\na       10\nbcdefg   5"
