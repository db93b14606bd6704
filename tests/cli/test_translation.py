"""The documented commands of translation, on a miniature of Multi30k: compare, tune, decode."""

import json
import shutil

import pytest

from brctc.decode.methods import recipe_search
from brctc.models import load_model
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
    "decode.tune={ctc_weights: [0, 0.5], length_rewards: [0.5], utterances: 3}",
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
    for system in numbers["systems"]:
        model = load_model(out / system["name"] / "model")
        assert model.description["tuned"] == {
            "ctc_weight": system["search"]["ctc_weight"],
            "length_reward": 0.5,
            "split": "dev",
            "utterances": 3,
        }
        assert recipe_search(model.description)["length_reward"] == 0.5
    assert "the best of a grid on dev, 3 utterances" in page


def test_searching_may_change_when_the_model_is_there(folder, tmp_path):
    """Another grid is searched anew; weights that are given are taken; nothing is trained again."""
    shutil.copytree(folder / "data", tmp_path / "data")
    shutil.copytree(folder / "exp", tmp_path / "exp")
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.glob("exp/*/*/model/*.safetensors")}
    assert len(weights) == 2
    arms = ("compare", "multi30k/mt-vanilla", "multi30k/mt-brctc", "--out", "exp/multi30k-mt", "--set")
    grid = "decode.tune={ctc_weights: [0.3], length_rewards: [0.1]}"
    for changes, expected in (
        ((grid,), (0.3, 0.1, "dev, 6 utterances")),
        (("decode.tune=null", "decode.ctc_weight=0.25"), (0.25, 0.0, "")),
    ):
        found = brctc(tmp_path, *arms, *SMALL, *TINY, *changes)
        assert found.code == 0, found.err
        numbers = json.loads((tmp_path / "exp" / "multi30k-mt" / "report.json").read_text())
        for system in numbers["systems"]:
            assert tuple(system["search"].values()) == expected
    assert {path: path.stat().st_mtime_ns for path in weights} == weights
    other = brctc(tmp_path, *arms, *SMALL, *TINY, "seed=1")
    assert "was begun with another recipe: seed was 0, now it is 1" in other.err


def test_tune(folder):
    weights = ("--ctc-weights", "0", "0.5", "--length-rewards", "0", "0.2", "1", "--beam", "2")
    found = brctc(folder, "tune", "exp/multi30k-mt/mt-brctc", *weights, "--out", "grid.json")
    assert found.code == 0, found.err
    assert "BLEU, dev, 3 examples" in found.out  # as many as the recipe says
    assert "reward 0.2" in found.out
    points = json.loads((folder / "grid.json").read_text())
    assert len(points) == 6
    best = points[0]
    chosen = f"--ctc-weight {best['ctc_weight']:g} --length-reward {best['length_reward']:g}"
    assert found.out.endswith(f"The best: {chosen}\n")
    kept = brctc(folder, "tune", "exp/multi30k-mt/mt-vanilla", "--limit", "4", "--keep")
    assert "BLEU, dev, 4 examples" in kept.out  # on the recipe's grid
    assert "0.5" in kept.out
    tuned = load_model(folder / "exp" / "multi30k-mt" / "mt-vanilla" / "model").description["tuned"]
    assert (tuned["utterances"], tuned["length_reward"]) == (4, 0.5)


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


def test_what_cannot_be_read_costs_no_result(folder):
    (folder / "talk.txt").write_bytes("Ein Mann schläft.\nEin \xff\nZwei Hunde.\n".encode("latin-1"))
    (folder / "empty.txt").write_bytes(b"")
    (folder / "sound.wav").write_bytes(b"RIFF\x00\x00\xff\n" * 9)
    (folder / "good.txt").write_text("Ein Kind spielt.\n")
    files = ("talk.txt", "empty.txt", "sound.wav", "gone.txt", "good.txt")
    found = brctc(folder, "decode", "exp/multi30k-mt/mt-vanilla", *files, "--jsonl", "talk.jsonl")
    assert found.code == 2
    said = [line.split("\t")[0] for line in found.out.splitlines()]
    assert said == ["talk:3", "good:1"]
    assert found.err.splitlines() == [
        "brctc decode: 5 could not be recognized:",
        "  talk:1: not UTF-8: invalid continuation byte at byte 13",
        "  talk:2: not UTF-8: invalid start byte at byte 4",
        "  empty.txt: it is empty",
        "  sound.wav: it is not text, which the model translates",
        "  gone.txt: No such file or directory",
    ]
    results = [json.loads(line) for line in (folder / "talk.jsonl").read_text().splitlines()]
    assert [result["id"] for result in results] == said
    assert results[0]["no_times"] == "the model reads text: its frames have no duration"


def test_manifests_without_references(folder):
    (folder / "plain.tsv").write_text("id\ttext\na\tEin Mann schläft.\nb\tZwei Hunde.\n")
    found = brctc(folder, "decode", "exp/multi30k-mt/mt-brctc", "--manifest", "plain.tsv")
    assert (found.code, len(found.out.splitlines()), found.err) == (0, 2, "")
    (folder / "some.tsv").write_text("id\ttext\ttranslation\na\tEin Mann.\tA man.\nb\tZwei Hunde.\t\n")
    found = brctc(folder, "decode", "exp/multi30k-mt/mt-brctc", "--manifest", "some.tsv")
    assert found.code == 0
    assert found.err.splitlines()[-1] == "of 1 of 2; no reference: b"
    (folder / "none.tsv").write_text("id\tsource\na\tEin Mann.\n")
    found = brctc(folder, "decode", "exp/multi30k-mt/mt-brctc", "--manifest", "none.tsv")
    assert (
        found.err
        == "brctc decode: none.tsv lacks the columns ['text']; its first line says ['id', 'source']\n"
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--transcript",), "--transcript: the model has no CTC output but that of its text"),
        (("--ctm", "a.ctm"), "--ctm, --srt, --textgrid: the model reads text, which has no times"),
        (("other/news.txt",), "news.txt and other/news.txt would both be news: use a manifest"),
    ],
)
def test_refusals(folder, options, problem):
    (folder / "news.txt").write_text("Ein Mann\n")
    found = brctc(folder, "decode", "exp/multi30k-mt/mt-brctc", "news.txt", *options)
    assert (found.code, found.out, found.err) == (2, "", f"brctc decode: {problem}\n")


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
