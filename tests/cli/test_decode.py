"""`brctc decode`: what it prints and writes, and what it refuses."""

import json
import os
import re
import shutil
import signal
import time

import pytest
import torch

from brctc.cli.decode import show_scores
from brctc.data import FeatureConfig, Prepared, Row, TokenConfig, Tokenizer, write_manifest
from brctc.decode import Result
from brctc.evaluate import default_metrics
from brctc.models import ConformerConfig, HeadConfig, System, SystemConfig, save_model
from tests.cli.commands import Command, brctc
from tests.data.children import children_of
from tests.data.sounds import noise, set_flac_total, set_wav_rate, write


@pytest.fixture
def folder(noises):
    return noises


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


def test_a_translation_is_compared_with_the_translation(folder, tmp_path):
    tokenizer = Tokenizer.train(["eins zwei drei"], TokenConfig(kind="word"))
    small = {"dim": 16, "heads": 2, "feed_forward_dim": 16, "kernel_size": 3, "subsampling_channels": 4}
    encoder = ConformerConfig(first_layers=1, second_layers=1, **small)
    config = SystemConfig(encoder=encoder, heads={"translation": HeadConfig()}, output="translation")
    system = System(config, 80, {"translation": tokenizer.size})
    with torch.no_grad():
        system.heads["translation"].bias[tokenizer.encode("eins")[0]] += 100  # it says nothing else
    save_model(tmp_path / "model", system, {"translation": tokenizer}, FeatureConfig())
    path = folder / "u0.wav"
    rows = [Row("a", "one", path, 1.0, translation="eins zwei drei"), Row("b", "one two", path, 1.0)]
    metrics = default_metrics("translation", "word").values()
    scores = [metric.describe(["eins zwei drei"], ["eins"]) for metric in metrics]
    for name, chosen in (("with", rows[:1]), ("without", rows[1:])):
        write_manifest(tmp_path / f"{name}.tsv", chosen)
        found = brctc(tmp_path, "decode", "model", "--manifest", f"{name}.tsv")
        assert found.code == 0, found.err
        assert [text for _, text in lines(found)] == ["eins"]
        assert found.err.splitlines() == (scores if name == "with" else [])
        prepare = ("prepare", f"{name}.tsv", "--split", "test", "--out", name)
        assert brctc(tmp_path, *prepare).code == 0
        prepared = brctc(tmp_path, "decode", "model", "--prepared", name)
        assert (prepared.code, prepared.out, prepared.err) == (0, found.out, found.err)


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


def test_several_processes_give_the_same(folder):
    """Texts, files, errors, and what could not be read, in the same order."""
    path = folder / "u0.wav"
    rows = [Row(f"r{i}", "one two", folder / f"u{i % 3}.wav", 1.0) for i in range(12)]
    rows[3:3] = [Row("gone", "one", folder / "gone.wav", 1.0), Row("notes", "one", folder / "all.tsv", 1.0)]
    rows.append(Row("short", "one", path, 0.01, None, 0, 160))
    write_manifest(folder / "many.tsv", rows)
    said = {}
    for jobs in (1, 2):
        out = ("--jsonl", f"{jobs}.jsonl", "--ctm", f"{jobs}.ctm", "--batch-size", "2", "--jobs", jobs)
        said[jobs] = brctc(folder, "decode", "model", "--manifest", "many.tsv", *out)
        assert said[jobs].code == 2
    assert said[1] == said[2]
    assert [id for id, _ in lines(said[2])] == [f"r{i}" for i in range(12)]
    assert "3 could not be recognized:\n  gone.wav: no such file\n  all.tsv: not readable" in said[2].err
    assert (folder / "1.ctm").read_text() == (folder / "2.ctm").read_text()
    one, two = ([json.loads(line) for line in (folder / f"{jobs}.jsonl").open()] for jobs in (1, 2))
    for result in (*one, *two):
        assert result.pop("encoder_s") > 0
        assert result.pop("decoder_s") > 0
    assert one == two


@pytest.mark.parametrize("jobs", [1, 2])
def test_stopped_it_writes_what_it_has(folder, tmp_path, jobs):
    rows = [Row(f"r{i}", "one", folder / "u2.wav", 2.0) for i in range(5000)]
    write_manifest(tmp_path / "endless.tsv", rows)
    many = ("--manifest", "endless.tsv", "--jobs", jobs, "--jsonl", "results.jsonl")
    command, said = Command(tmp_path, "decode", folder / "model", *many), tmp_path / ".out"
    while command.process.is_alive() and not (said.exists() and said.read_text().count("\n") > 5):
        time.sleep(0.01)
    os.kill(command.process.pid, signal.SIGINT)
    found = command.finish()
    assert found.code == 130
    ids = [id for id, _ in lines(found)]
    assert ids == [f"r{i}" for i in range(len(ids))]
    assert 5 <= len(ids) < 5000
    assert [json.loads(line)["id"] for line in (tmp_path / "results.jsonl").open()] == ids
    assert found.err.endswith(f"brctc decode: stopped after {len(ids)} utterances\n")
    assert "Traceback" not in found.err


def test_a_process_that_dies_costs_no_result_before(folder, tmp_path):
    write_manifest(
        tmp_path / "endless.tsv", [Row(f"r{i}", "one", folder / "u2.wav", 2.0) for i in range(5000)]
    )
    many = ("--manifest", "endless.tsv", "--jobs", 2, "--jsonl", "results.jsonl")
    command, said = Command(tmp_path, "decode", folder / "model", *many), tmp_path / ".out"
    while command.process.is_alive() and not (said.exists() and said.read_text().count("\n") > 5):
        time.sleep(0.01)
    workers = [pid for server in children_of(command.process.pid) for pid in children_of(server)]
    os.kill(workers[0], signal.SIGKILL)
    found = command.finish()
    assert found.code == 2
    ids = [id for id, _ in lines(found)]
    assert 5 <= len(ids) < 5000
    assert [json.loads(line)["id"] for line in (tmp_path / "results.jsonl").open()] == ids
    said = "a process that recognized speech has died, perhaps for lack of memory: use fewer --jobs"
    assert found.err.endswith(f"{said}; {len(ids)} utterances were recognized before\n")


def test_headers_that_lie_cost_no_other_file(folder, tmp_path):
    """What a piped encoder leaves is read to its end; what is no audio is named."""
    for name in ("first", "unknown", "absurd", "last"):
        write(tmp_path / f"{name}.flac", noise(1.0, 1))
    set_flac_total(tmp_path / "unknown.flac", 0)
    set_flac_total(tmp_path / "absurd.flac", 2**36 - 1)
    (tmp_path / "garbage.flac").write_bytes(b"fLaC" + bytes(range(256)) * 20)
    set_wav_rate(write(tmp_path / "slow.wav", noise(1.0, 1)), 1)
    names = ("first.flac", "unknown.flac", "absurd.flac", "garbage.flac", "slow.wav", "last.flac")
    found = brctc(tmp_path, "decode", folder / "model", *names, "--jsonl", "results.jsonl")
    assert found.code == 2
    assert [id for id, _ in lines(found)] == ["first", "unknown", "absurd", "last"]
    assert len({text for _, text in lines(found)}) == 1
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 4
    assert "2 could not be recognized:\n  garbage.flac: not readable as audio" in found.err
    assert "slow.wav: a sample rate of 1 Hz, expected 1000 to 1000000 Hz" in found.err


def test_names_of_files_that_are_no_ids(folder, tmp_path):
    """They would break the lines of what is printed, or could not be printed at all."""
    odd = {"a\nb": "U+000A", "e\x1b[31m": "U+001B", "x\u202e": "U+202E", "\udcff": "U+DCFF"}
    for name in (*odd, "good"):
        shutil.copy(folder / "u0.wav", tmp_path / f"{name}.wav")
    names = [f"{name}.wav" for name in (*odd, "good")]
    found = brctc(tmp_path, "decode", folder / "model", *names, "--jsonl", "results.jsonl")
    assert found.code == 2
    assert [id for id, _ in lines(found)] == ["good"]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 1
    for name, code in odd.items():
        assert f"\n  {f'{name}.wav'!r}: the id has control characters: {code}; rename the file" in found.err


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


@pytest.mark.parametrize(
    ("output", "tokens", "said"),
    [
        ("translation", "char", ["BLEU: 100.00 (100.00 to 100.00; brevity penalty 1.000)", "chrF: 100.00 "]),
        ("transcript", "char", ["char error rate: 0.00%", "word error rate: 0.00%"]),
        ("transcript", "bpe", ["word error rate: 0.00%"]),
    ],
)
def test_scores_are_those_of_the_output(output, tokens, said, capsys):
    """A translation has no one right wording: its errors are not counted."""
    text = "Ja, das ist gut."
    results = [Result(id, text, [], 0.0, 1.0, None, 0.0, 0.0, *[None] * 5) for id in ("a", "unknown")]
    show_scores(results, {"a": text}, default_metrics(output, tokens))
    *found, last = capsys.readouterr().err.splitlines()
    assert last == "of 1 of 2; no reference: unknown"
    assert len(found) == len(said)
    assert all(line.startswith(begins) for line, begins in zip(found, said, strict=True))


def test_no_times_of_a_model_that_finishes_early(folder):
    found = brctc(folder, "decode", "early", "u0.wav", "--ctm", "early.ctm")
    assert found.code == 2
    assert "brctc decode: there are no times to write: the model was trained to finish early" in found.err
    assert not (folder / "early.ctm").exists()
    assert brctc(folder, "decode", "early", "u0.wav").code == 0


def test_a_run_and_a_prepared_split(trained):
    folder, _ = trained
    found = brctc(folder, "decode", "vanilla", "--prepared", "prepared", "--split", "dev")
    assert found.code == 0, found.err
    assert [id for id, _ in lines(found)] == [u.id for u in Prepared(folder / "prepared", "dev").examples]
    assert "char error rate: " in found.err
    assert "word error" not in found.err  # digits without spaces
    for run, why in (
        ("brctc", "the model was trained to finish early"),
        ("vanilla", "features that were not"),
    ):
        timed = brctc(folder, "decode", run, "--prepared", "prepared", "--ctm", "times.ctm")
        assert timed.code == 2
        assert "there are no times to write: " in timed.err
        assert why in timed.err
    by_model = brctc(folder, "decode", "vanilla/model", "--prepared", "prepared", "--split", "dev")
    assert by_model.out == found.out
    beam = ("--method", "ctc-beam", "--beam", "3")
    assert brctc(folder, "decode", "vanilla", "--prepared", "prepared", *beam).code == 0


def test_a_damaged_record_costs_no_other(trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "copy")
    (shard,) = (folder / "prepared").glob("test-*/features.*.tar")
    content = bytearray(shard.read_bytes())
    start = [found.start() for found in re.finditer(b"\x93NUMPY", content)][2]
    content[start : start + 6] = b"nonono"
    shard.write_bytes(content)
    whole = brctc(trained[0], "decode", "vanilla", "--prepared", "prepared")
    for jobs in (1, 2):
        found = brctc(folder, "decode", "vanilla", "--prepared", "prepared", "--jobs", jobs)
        assert found.code == 2
        assert lines(found) == [line for line in lines(whole) if line[0] != "test-00002"]
        assert "brctc decode: test-00002: the data of " in found.err
        assert "Traceback" not in found.err
        quick = ("--repeats", "1", "--beams", "2", "--jobs", jobs)
        measured = brctc(folder, "evaluate", "vanilla", *quick)  # which is not done by halves
        assert measured.code == 2
        assert f"brctc evaluate: the data of {shard.relative_to(folder).parent}" in measured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model",), "give one of FILE..., --manifest and --prepared"),
        (("model", "u0.wav", "--manifest", "all.tsv"), "give one of FILE..., --manifest and --prepared"),
        (("model", "nowhere.wav"), "nowhere.wav: no such file"),
        (("model", "all.tsv"), "all.tsv: not readable as audio"),
        (("model", "u0.wav", "--beam", "0"), "beam is 0"),
        (("model", "u0.wav", "--batch-size", "0"), "batch_size is 0"),
        (("model", "u0.wav", "--jobs", "0"), "jobs is 0, expected at least 1"),
        (("model", "u0.wav", "--jsonl", "model"), "--jsonl model is a directory, expected a file"),
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
