"""Texts that are spoken: splits, voices, what is taken, and the same bytes from any number of processes."""

import pickle

import numpy as np
import pytest

from brctc.config import KeyedError, SectionError, all_keys, describe_problems
from brctc.data import (
    CORPORA,
    FeatureConfig,
    LengthCheck,
    PreparationError,
    Prepared,
    TokenConfig,
    prepare_corpus,
)
from brctc.data.corpora.spoken_text import NOISE_RMS, SILENCE_S, SPEECH_RMS, SpokenTextConfig
from brctc.data.split import splits_in
from brctc.train import Recipe
from tests.cli.commands import brctc
from tests.data.folders import contents, states
from tests.data.pairs import corpus_of, write_table

WHO = ("man", "woman", "dog", "child", "bird")
DOES = ("is sleeping", "runs fast", "looks around", "eats fish", "sings", "walks home")
COUNTS = {"train": 30, "dev": 8, "test": 10}


@pytest.fixture
def texts(tmp_path) -> dict:
    """A corpus of German texts with English ones."""
    paths = {}
    for split, count in COUNTS.items():
        rows = [(f"{split}{n}", f"Satz {n}.", f"A {WHO[n % 5]} {DOES[n % 6]}.") for n in range(count)]
        paths[split] = str(write_table(tmp_path / f"{split}.tsv", rows))
    return {"kind": "text-pairs", "manifests": paths}


@pytest.fixture
def english(tmp_path) -> dict:
    for split, name in (("train", "train"), ("dev", "val"), ("test", "test_mini")):
        rows = [(f"{split}{n}", f"Satz {n}.", f"A {WHO[n % 5]} {DOES[n % 6]}.") for n in range(COUNTS[split])]
        write_table(tmp_path / "multi" / f"{name}.tsv", rows)
    return {"kind": "multi30k", "source": str(tmp_path / "multi"), "reverse": True}


def test_texts_become_speech(english, tmp_path):
    corpus = corpus_of("spoken-text", tmp_path / "out", of=english, take={"train": 12})
    assert corpus.input == "audio"
    assert corpus.small_scale
    assert "synthetic speech" in corpus.title
    assert list(corpus.split_names()) == ["train", "dev", "test_mini"]
    summaries = prepare_corpus(corpus, check=LengthCheck(TokenConfig(), 4))
    assert {split: summary.examples for split, summary in summaries.items()} == {
        "train": 36, "dev": 8, "test_mini": 10
    }  # fmt: skip
    assert summaries["dev"].resampled == (22050,)
    train, dev = Prepared(tmp_path / "out", "train"), Prepared(tmp_path / "out", "dev")
    assert dev.examples[3].texts == {"transcript": "A child eats fish.", "translation": "Satz 3."}
    for example in dev.examples:
        assert [time.word for time in example.word_times] == example.texts["transcript"].split()
        assert example.word_times[0].start_s >= SILENCE_S
        assert example.word_times[-1].end_s <= example.duration_s - SILENCE_S + 0.03
    heard = {
        split: {example.speaker for example in found.examples}
        for split, found in (("train", train), ("dev", dev))
    }
    assert heard["train"] <= {*corpus.voices}
    assert len(heard["train"]) >= 4
    assert heard["dev"] == {*corpus.held_out_voices}


def test_the_same_from_any_number_of_processes(english, tmp_path):
    options = {"of": english, "speeds": (1.0,), "store": "audio"}
    for jobs in (1, 2):
        prepare_corpus(corpus_of("spoken-text", tmp_path / str(jobs), **options), jobs=jobs)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    before = states(tmp_path / "1")
    prepare_corpus(corpus_of("spoken-text", tmp_path / "1", **options))
    assert states(tmp_path / "1") == before


def test_an_utterance_depends_on_its_id_and_the_seed_alone(texts, tmp_path):
    def items(split="train", **options) -> dict:
        source = corpus_of("spoken-text", tmp_path, of=texts, language="de", **options).sources()[split]
        assert source.size() == len(list(source.items()))
        return {item.id: item for item in source.items()}

    all_of_them = items()
    few, more = items(take={"train": 5}), items(take={"train": 15})
    assert len(few) == 5
    assert few.items() <= more.items() <= all_of_them.items()
    assert list(few) == [id for id in all_of_them if id in few]  # in the order of the files
    assert list(few) != list(all_of_them)[:5]
    assert items(take={"train": 1000}) == all_of_them
    assert items(seed=1) != all_of_them
    assert items(take={"train": 5}, seed=1).keys() != few.keys()
    assert len({(item.voice, item.words_per_minute, item.pitch) for item in all_of_them.values()}) > 25
    assert {item.voice for item in items("dev", held_out_voices=["m2"]).values()} == {"m2"}
    slow = items(words_per_minute=[100, 110], pitch=[50, 50])
    assert all(100 <= item.words_per_minute <= 110 for item in slow.values())
    assert {item.pitch for item in slow.values()} == {50}


def test_loading(texts, tmp_path):
    source = corpus_of("spoken-text", tmp_path, of=texts, language="de").sources()["dev"]
    copy = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 3000
    item = list(source.items())[2]
    loaded, again = source.load(item), copy.load(item)
    np.testing.assert_array_equal(loaded.samples, again.samples)
    assert loaded.texts == {"transcript": "Satz 2.", "translation": "A dog looks around."}
    assert loaded.samples.dtype == np.float32
    edge = round(SILENCE_S * loaded.sample_rate)
    noise, speech = loaded.samples[: edge - 10], loaded.samples[edge:-edge]
    assert noise.std() == pytest.approx(NOISE_RMS, rel=0.1)
    assert np.sqrt(np.square(speech).mean()) == pytest.approx(SPEECH_RMS, rel=0.02)


def test_what_makes_other_speech(texts, tmp_path):
    def digest(**options) -> str:
        corpus = corpus_of("spoken-text", tmp_path, of=texts, **{"language": "de"} | options)
        return corpus.sources()["train"].digest()

    same = digest()
    assert digest(speeds=(1.0,), store="audio") == same
    assert digest(take={"dev": 3}) == same
    for change in (
        {"seed": 1},
        {"language": "en"},
        {"pitch": (50, 50)},
        {"take": {"train": 3}},
        {"voices": ["m8"]},
    ):
        assert digest(**change) != same
    write_table(tmp_path / "train.tsv", [("a", "b", "c")])
    assert digest() != same


def test_problems_of_texts_are_listed(texts, tmp_path):
    write_table(
        tmp_path / "train.tsv", [("t0", "", "b"), ("t1", "Satz"), ("t2", "…", "b"), ("t3", "Ja.", "Yes.")]
    )
    with pytest.raises(PreparationError, match=r"train\.tsv, spoken: 3 problems") as caught:
        prepare_corpus(corpus_of("spoken-text", tmp_path / "out", of=texts, language="de"))
    assert sorted(map(str, caught.value.problems)) == [
        "t0: the text is empty",
        "t1: 2 fields, expected the header's 3",
        "t2: espeak says nothing for '…'",
    ]
    assert splits_in(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"of": {"kind": "handwriting"}},
            "of.kind: handwriting is not a corpus of texts: there is nothing to",
        ),
        ({"of": {"kind": "multi30"}}, "of.kind: there is no corpus 'multi30': did you mean 'multi30k'?"),
        ({"of": {"kind": "multi30k"}}, "of.source: missing"),
        ({"of": {"kind": "multi30k", "sorce": "x"}}, "of.sorce: unknown key; did you mean of.source?"),
        ({}, "of: missing"),
        ({"voices": ["m1", "m2"]}, "held_out_voices: training hears m2, too"),
        ({"voices": []}, "voices: "),
        ({"pitch": [60, 40]}, "pitch: the least, 60, is above the most, 40"),
        ({"words_per_minute": [20, 400]}, "words_per_minute.0: input should be greater than or equal to 80"),
        ({"take": {"train": 0}}, "take.train: "),
    ],
)
def test_bad_options(tmp_path, options, message):
    texts = {"kind": "multi30k", "source": "x"} if options and "of" not in options else {}
    content = {"kind": "spoken-text", "prepared": "p", **({"of": texts} if texts else {}), **options}
    with pytest.raises((SectionError, KeyedError)) as caught:
        CORPORA.parse(content)
    assert message in describe_problems(caught.value.error, SpokenTextConfig, "here")


def test_bad_options_of_sources(texts, tmp_path):
    with pytest.raises(ValueError, match="take has tset; the splits are train, dev, test"):
        corpus_of("spoken-text", tmp_path, of=texts, take={"tset": 3}).sources()
    with pytest.raises(ValueError, match="espeak has no voice 'm99'"):
        corpus_of("spoken-text", tmp_path, of=texts, voices=["m99"]).sources()


def test_keys_are_finite():
    keys = list(all_keys(Recipe))
    assert "corpus.of.source" in keys
    assert not any(key.startswith("corpus.of.of") for key in keys)


def test_command(english, tmp_path):
    wanted = ("prepare", "spoken-text", "--speeds", "1", "--jobs", "2", "--features.num-bins", "40")
    of = "of={kind: multi30k, source: multi, reverse: true}"
    done = brctc(tmp_path, *wanted, "--out", "p", "--set", of, "take={train: 7}")
    assert done.code == 0, done.err
    found = Prepared(tmp_path / "p", "train")
    assert len(found.examples) == 7
    assert found.feature_config == FeatureConfig(num_bins=40)
    failed = brctc(tmp_path, *wanted, "--out", "p", "--source", "multi")
    assert failed.code == 2
    assert "spoken-text: of: missing" in failed.err
