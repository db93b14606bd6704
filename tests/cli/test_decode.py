"""`brctc decode`: what it prints and writes, and what it refuses."""

import json

import pytest
import torch

from brctc.data import FeatureConfig, Prepared, Row, TokenConfig, Tokenizer, write_manifest
from brctc.models import EncoderConfig, System, SystemConfig, save_model
from tests.cli.commands import brctc
from tests.data.sounds import noise, write

TEXTS = ("one two", "two", "one one")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three noises, a manifest of them, an untrained model, and one that says it finishes early."""
    folder = tmp_path_factory.mktemp("decode")
    rows = []
    for i, text in enumerate(TEXTS):
        path = write(folder / f"u{i}.wav", noise(1 + i / 2, i))
        rows.append(Row(f"u{i}", text, path, 1 + i / 2))
    write_manifest(folder / "all.tsv", rows)
    torch.manual_seed(1)
    small = {"dim": 16, "heads": 2, "feed_forward_dim": 16, "kernel_size": 3, "subsampling_channels": 4}
    encoder = EncoderConfig(first_layers=1, second_layers=1, **small)
    tokenizer = Tokenizer.train(TEXTS, TokenConfig(kind="word"))
    system = System(SystemConfig(encoder=encoder), 80, tokenizer.size)
    with torch.no_grad():
        system.encoder.ctc.bias[:2] = -1  # it shall say words
    save_model(folder / "model", system, tokenizer, FeatureConfig(), None, {})
    save_model(folder / "early", system, tokenizer, FeatureConfig(), None, {"risk": {"kind": "early-finish"}})
    risks = {"risk": {"kind": "none"}, "final_risk": "early-finish"}
    save_model(folder / "finally-early", system, tokenizer, FeatureConfig(), None, risks)
    return folder


def lines(found):
    return [line.split("\t") for line in found.out.splitlines()]


def test_audio_files(folder):
    found = brctc(folder, "decode", "model", "u1.wav", "u0.wav")
    assert found.code == 0, found.err
    assert [id for id, _ in lines(found)] == ["u1", "u0"]
    assert {word for _, text in lines(found) for word in text.split()} <= {"one", "two"}
    assert "error rate" not in found.err


def test_a_manifest_gives_the_error_rate(folder):
    found = brctc(folder, "decode", "model", "--manifest", "all.tsv")
    assert [id for id, _ in lines(found)] == ["u0", "u1", "u2"]
    assert "word error rate: " in found.err
    assert " of 5)" in found.err
    batched = brctc(folder, "decode", "model", "--manifest", "all.tsv", "--batch-size", "2")
    assert batched.out == found.out


def test_files_of_all_kinds(folder):
    out = ("--jsonl", "a.jsonl", "--ctm", "a.ctm", "--srt", "srt", "--textgrid", "grids")
    found = brctc(folder, "decode", "model", "--manifest", "all.tsv", *out)
    assert found.code == 0, found.err
    results = [json.loads(line) for line in (folder / "a.jsonl").read_text().splitlines()]
    assert [[result["id"], result["text"]] for result in results] == lines(found)
    words = [line.split() for line in (folder / "a.ctm").read_text().splitlines()]
    assert [word[4] for word in words] == " ".join(text for _, text in lines(found)).split()
    assert words
    assert sorted(path.name for path in (folder / "srt").iterdir()) == ["u0.srt", "u1.srt", "u2.srt"]
    assert "IntervalTier" in (folder / "grids" / "u2.TextGrid").read_text()


def test_folders_of_files_are_made(folder):
    found = brctc(folder, "decode", "model", "u0.wav", "--jsonl", "new/deep/a.jsonl", "--ctm", "other/a.ctm")
    assert found.code == 0, found.err
    assert (folder / "new" / "deep" / "a.jsonl").exists()
    assert (folder / "other" / "a.ctm").exists()


@pytest.mark.parametrize(("other", "option"), [("s/a", "--srt"), ("s a", "--ctm")])
def test_utterances_that_would_be_one(folder, other, option):
    path = folder / "u0.wav"
    write_manifest(folder / "same.tsv", [Row(other, "one", path, 1.0), Row("s_a", "two", path, 1.0)])
    found = brctc(folder, "decode", "model", "--manifest", "same.tsv", option, "both")
    assert (found.code, found.out) == (2, "")
    assert found.err == f"brctc decode: {other} and s_a would both be written to s_a\n"


def test_one_that_cannot_be_read_does_not_stop_the_others(folder):
    path = folder / "u0.wav"
    rows = [Row("gone", "one", folder / "gone.wav", 1.0), Row("a", "one", path, 1.0), Row("b", "", path, 1.0)]
    write_manifest(folder / "partly.tsv", rows)
    found = brctc(folder, "decode", "model", "--manifest", "partly.tsv", "--jsonl", "partly.jsonl")
    assert found.code == 2
    assert [id for id, _ in lines(found)] == ["a", "b"]
    assert found.err.endswith("brctc decode: gone.wav: no such file\n")
    assert " of 1)" in found.err  # b has no text to compare with
    results = [json.loads(line) for line in (folder / "partly.jsonl").read_text().splitlines()]
    assert [result["id"] for result in results] == ["a", "b"]
    nothing = brctc(folder, "decode", "model", "gone.wav", "lost.wav", "--jsonl", "nothing.jsonl")
    assert (nothing.code, nothing.out) == (2, "")
    assert "2 could not be recognized:\n  gone.wav: no such file\n  lost.wav: no such file" in nothing.err
    assert not (folder / "nothing.jsonl").exists()


def test_a_file_that_cannot_be_opened_costs_no_result(folder):
    unusable = "x" * 300 + ".wav"
    found = brctc(folder, "decode", "model", "u0.wav", unusable, "u1.wav", "--jsonl", "rest.jsonl")
    assert found.code == 2
    assert [id for id, _ in lines(found)] == ["u0", "u1"]
    assert f"{unusable}: File name too long" in found.err
    assert len((folder / "rest.jsonl").read_text().splitlines()) == 2


def test_two_files_of_one_name_in_a_ctm_are_refused(folder):
    found = brctc(folder, "decode", "model", "s a.wav", "s_a.wav", "--ctm", "both.ctm")
    assert found.code == 2
    assert "s a and s_a would both be written to s_a" in found.err


def test_features_of_another_kind_are_refused(folder):
    prepared = ("prepare", "all.tsv", "--split", "test", "--out", "slow", "--features.frame-shift-ms", "20")
    assert brctc(folder, *prepared).code == 0
    found = brctc(folder, "decode", "model", "--prepared", "slow")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("brctc decode: the model takes 80 features of ")


@pytest.mark.parametrize("model", ["early", "finally-early"])
def test_no_times_of_a_model_that_finishes_early(folder, model):
    found = brctc(folder, "decode", model, "u0.wav", "--ctm", "early.ctm")
    assert found.code == 2
    assert "brctc decode: there are no times to write: the model was trained to finish early" in found.err
    assert brctc(folder, "decode", model, "u0.wav").code == 0


def test_a_run_and_a_prepared_split(trained):
    folder, _ = trained
    found = brctc(folder, "decode", "vanilla", "--prepared", "prepared", "--split", "dev")
    assert found.code == 0, found.err
    assert [id for id, _ in lines(found)] == [u.id for u in Prepared(folder / "prepared", "dev").utterances]
    assert "char error rate: " in found.err
    assert "word error" not in found.err  # digits without spaces
    by_model = brctc(folder, "decode", "vanilla/model", "--prepared", "prepared", "--split", "dev")
    assert by_model.out == found.out
    beam = ("--method", "ctc-beam", "--beam", "3")
    assert brctc(folder, "decode", "vanilla", "--prepared", "prepared", *beam).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model",), "say one of AUDIO..., --manifest and --prepared"),
        (("model", "u0.wav", "--manifest", "all.tsv"), "say one of AUDIO..., --manifest and --prepared"),
        (("model", "nowhere.wav"), "nowhere.wav: no such file"),
        (("model", "all.tsv"), "all.tsv: not readable as audio"),
        (("model", "u0.wav", "--beam", "0"), "beam is 0"),
        (("model", "u0.wav", "--jsonl", "model"), "--jsonl model is a directory: say a file"),
        (("model", "u0.wav", "--method", "attention"), 'method is "attention", but the model has no such'),
        (("model", "u0.wav", "other/u0.wav"), "u0.wav and other/u0.wav would both be u0"),
        (("srt", "u0.wav"), "srt holds no model"),
    ],
)
def test_refusals(folder, arguments, message):
    found = brctc(folder, "decode", *arguments)
    assert found.code == 2
    assert found.err.startswith(f"brctc decode: {message}")
    assert "Traceback" not in found.err


def test_a_run_without_a_model(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    found = brctc(tmp_path, "decode", "run", "a.wav")
    assert found.err.startswith("brctc decode: the run run has no model yet")
