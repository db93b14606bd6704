"""The documented commands of translation, on a miniature of Multi30k: compare, tune, decode."""

import json

import pytest

from tests.cli.commands import brctc

PAIRS = [
    ("Ein Mann schläft.", "A man is sleeping."),
    ("Zwei Hunde laufen über Gras.", "Two dogs run on grass."),
    ("Eine Frau isst einen Apfel.", "A woman eats an apple."),
    ("Ein Kind spielt im Park.", "A child plays in the park."),
    ("Drei Männer sitzen am Tisch.", "Three men sit at the table."),
    ("Ein Hund schläft im Gras.", "A dog sleeps in the grass."),
]
SMALL = (
    "tokens.source.size=60",
    "model.encoder={kind: legonn, dim: 16, heads: 2, feed_forward_dim: 9, first_layers: 1, second_layers: 1}",
    "model.decoders.attention.dim=16",
    "model.decoders.attention.layers=1",
    "model.decoders.attention.heads=2",
    "model.decoders.attention.feed_forward_dim=16",
    "batch.tokens=200",
)
TINY = (
    "stages.first.steps=4",
    "stages.second.steps=4",
    "checkpoints.every_steps=2",
    "checkpoints.average=2",
    "monitor={dev_utterances: 4, tensorboard: false}",
    "decode.beam=2",
)
ENCODER = "{kind: conformer, subsampling: %s, dim: 16, heads: 2, feed_forward_dim: 16, first_layers: 1, " + (
    "second_layers: 1, kernel_size: 3, subsampling_channels: 4}"
)
DECODER = "{kind: attention, text: %s, on: %s, layers: 1, dim: 16, heads: 2, feed_forward_dim: 16}"
SMALL_SPEECH = (
    "tokens.transcript={kind: char}",
    "tokens.translation={kind: char}",
    "corpus.speeds=[1.0]",
    "corpus.take={train: 8, dev: 4}",
    f"model.encoder={ENCODER % 4}",
    f"model.upper_encoders.translation.encoder={ENCODER % 1}",
    f"model.decoders.transcript={DECODER % ('transcript', 'final')}",
    f"model.decoders.translation={DECODER % ('translation', 'translation')}",
    "stages.first.losses.middle.infeasible=skip",
    "stages.first.losses.final.infeasible=skip",
    "stages.second.losses.middle.infeasible=skip",
    "stages.second.losses.final.infeasible=skip",
)


def write_multi30k(folder):
    folder.mkdir(parents=True)
    for split, times in (("train", 4), ("val", 1), ("test_2016_flickr", 1)):
        for i, language in enumerate(("de", "en")):
            lines = [pair[i] for pair in PAIRS] * times
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Both arms of text translation, trained and compared."""
    folder = tmp_path_factory.mktemp("multi30k")
    write_multi30k(folder / "data" / "multi30k_deen")
    recipes = ("multi30k/mt-vanilla", "multi30k/mt-brctc")
    found = brctc(folder, "compare", *recipes, "--out", "exp/multi30k-mt", "--set", *SMALL, *TINY)
    assert found.code == 0, found.err
    return folder


def test_compare(folder):
    out = folder / "exp" / "multi30k-mt"
    numbers = json.loads((out / "report.json").read_text())
    assert (numbers["split"], numbers["time_per"], numbers["utterances"]) == (
        "test_2016_flickr",
        "sentence",
        6,
    )
    assert list(numbers["metrics"]) == ["bleu", "chrf"]
    page = (out / "report.html").read_text()
    for shown in ("seconds per sentence", "nrefs:1|case:mixed", "token of the source", "appendix I"):
        assert shown in page


def test_tune(folder):
    weights = ("--ctc-weights", "0", "0.5", "--length-rewards", "0", "0.2", "1", "--beam", "2")
    found = brctc(folder, "tune", "exp/multi30k-mt/mt-brctc", *weights, "--out", "grid.json")
    assert found.code == 0, found.err
    assert "BLEU, dev, 6 examples" in found.out
    assert "reward 0.2" in found.out
    points = json.loads((folder / "grid.json").read_text())
    assert len(points) == 6
    best = points[0]
    chosen = f"--ctc-weight {best['ctc_weight']:g} --length-reward {best['length_reward']:g}"
    assert found.out.endswith(f"The best: {chosen}\n")


def test_decode_a_text_file(folder):
    (folder / "news.txt").write_text("Ein Mann schläft.\n\nZwei Hunde laufen.\n")
    options = ("--beam", "3", "--nbest", "3", "--jsonl", "news.jsonl")
    found = brctc(folder, "decode", "exp/multi30k-mt/mt-brctc", "news.txt", *options)
    assert found.code == 2  # the others are there, and the empty line is named
    assert found.err == "brctc decode: news:2: the text is empty\n"
    assert [line.split("\t")[0] for line in found.out.splitlines()] == ["news:1", "news:3"]
    results = [json.loads(line) for line in (folder / "news.jsonl").read_text().splitlines()]
    assert [len(result["nbest"]) for result in results] == [3, 3]
    assert all(result["nbest"][0]["text"] == result["text"] for result in results)


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        (b"Ein \xff Mann\n", (), "news.txt is not UTF-8: invalid start byte in line 1"),
        (b"Ein Mann\n", ("--transcript",), "--transcript: the model has no CTC output but that of its text"),
    ],
)
def test_refusals(folder, content, options, problem):
    (folder / "news.txt").write_bytes(content)
    found = brctc(folder, "decode", "exp/multi30k-mt/mt-brctc", "news.txt", *options)
    assert (found.code, found.err) == (2, f"brctc decode: {problem}\n")


def test_speech(tmp_path):
    pytest.importorskip("espeakng_loader")
    write_multi30k(tmp_path / "data" / "multi30k_deen")
    recipes = ("multi30k/st-vanilla", "multi30k/st-brctc")
    found = brctc(tmp_path, "compare", *recipes, "--out", "exp/multi30k-st", "--set", *SMALL_SPEECH, *TINY)
    assert found.code == 0, found.err
    numbers = json.loads((tmp_path / "exp" / "multi30k-st" / "report.json").read_text())
    assert numbers["time_per"] == "second"
    assert "synthetic" in (tmp_path / "exp" / "multi30k-st" / "report.html").read_text()
    options = ("--prepared", "data/prepared/spoken-multi30k", "--split", "dev", "--transcript", "--beam", "2")
    said = brctc(tmp_path, "decode", "exp/multi30k-st/st-brctc", *options)
    assert said.code == 0, said.err
    assert [line.count("\t") for line in said.out.splitlines()] == [2] * 4
    assert [line.split(":")[0] for line in said.err.splitlines()] == ["BLEU", "chrF"]
