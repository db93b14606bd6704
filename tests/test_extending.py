"""The files of docs/extending.md, from outside the package: prepared, trained, evaluated, exported."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from brctc.train import read_metrics
from tests.cli.commands import brctc

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page's files, and a run of its recipe."""
    folder = tmp_path_factory.mktemp("extending")
    for name, content in re.findall(
        r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.M | re.S
    ):
        (folder / name).write_text(content)
    (imports,) = re.findall(r"`my_rooms.py` is `(.*?)`", PAGE.read_text())
    (folder / "my_rooms.py").write_text(imports + "\n")
    found = brctc(folder, "--import", "my_rooms", "train", "toy.yaml", "--out", "exp/toy")
    assert found.code == 0, found.err
    return folder


def test_every_kind_of_room_is_shown(folder):
    names = {path.name for path in folder.glob("my_*.py")}
    assert names == {f"my_{what}.py" for what in ("corpus", "encoder", "loss", "metric", "export", "rooms")}


def test_the_corpus_the_encoder_and_the_loss_are_trained_with(folder):
    steps = [line for line in read_metrics(folder / "exp" / "toy") if "seconds" in line]
    assert len(steps) == 30
    assert "confident" not in steps[0]  # its weight is 0 there
    assert steps[-1]["confident"] > 0
    assert steps[-1]["ctc"] < steps[0]["ctc"]
    assert steps[-1]["factors"]["confident.weight"] == pytest.approx(0.1)
    description = json.loads((folder / "exp" / "toy" / "model" / "model.json").read_text())
    assert description["system"]["encoder"] == {"kind": "gru", "dim": 32, "subsampling": 1}


def test_the_metric_is_measured_and_shown(folder):
    found = brctc(folder, "--import", "my_rooms", "evaluate", "exp/toy", "--beams", "2", "--repeats", "1")
    assert found.code == 0, found.err
    assert re.search(r"sentences right, % \(95% interval\)", found.out)
    assert re.search(r"error rate, % \(95% interval\)", found.out)
    stored = json.loads((folder / "evaluation.json").read_text())
    assert list(stored["metrics"]) == ["right", "errors"]


def test_the_format_is_exported_to(folder):
    arguments = ("--import", "my_rooms", "export", "exp/toy", "--out", "weights", "--for", "weights")
    found = brctc(folder, *arguments, "--set", "half=true")
    assert found.code == 0, found.err
    arrays = np.load(folder / "weights" / "weights.npz")
    assert arrays["encoder.enter.weight"].dtype == np.float16
    again = brctc(folder, *arguments)
    assert again.code == 2
    assert "weights exists already: choose another folder" in again.err


def test_without_the_import_kinds_are_unknown(folder):
    found = brctc(folder, "train", "toy.yaml", "--out", "exp/other")
    assert found.code == 2
    assert "corpus.kind: there is no corpus 'tones'" in found.err
    found = brctc(folder, "decode", "exp/toy", "--prepared", "prepared", "--split", "test")
    assert found.code == 2
    assert "there is no encoder 'gru'" in found.err
    found = brctc(folder, "--import", "no_such_module", "train", "toy.yaml", "--out", "exp/other")
    assert found.code == 2
    assert "--import no_such_module: No module named 'no_such_module'" in found.err


def test_a_wrong_option_of_a_kind_of_ones_own_is_named(folder):
    changes = ("--set", "corpus.string=3")
    found = brctc(folder, "--import", "my_rooms", "train", "toy.yaml", "--out", "exp/other", *changes)
    assert found.code == 2
    assert "corpus.string: unknown key; did you mean corpus.strings?" in found.err


def test_the_bundle_is_a_model(folder):
    found = brctc(folder, "--import", "my_rooms", "export", "exp/toy", "--out", "bundle")
    assert found.code == 0, found.err
    assert "tokens.txt" in found.out
    assert (folder / "bundle" / "tokens.txt").read_text().splitlines()[0] == "<blank> 0"
    options = ("--prepared", "prepared", "--split", "test")
    ours = brctc(folder, "--import", "my_rooms", "decode", "exp/toy", *options)
    theirs = brctc(folder, "--import", "my_rooms", "decode", "bundle", *options)
    assert theirs.code == 0, theirs.err
    assert theirs.out == ours.out
