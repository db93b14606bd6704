"""The corpora built in: what they promise of splits, times and repeatability."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from brctc.config import KeyedError, SectionError, describe_problems
from brctc.data import (
    CORPORA,
    SPEEDS,
    FeatureConfig,
    LengthCheck,
    PreparationError,
    Prepared,
    TokenConfig,
    extract_features,
    load_audio,
    prepare_corpus,
)
from brctc.data.corpora import handwriting
from brctc.data.prepare_corpus import origin_of
from brctc.data.split import splits_in
from tests.data.corpora import DIGITS, SPLITS, corpus_of, prepare, text_of
from tests.data.folders import contents, states
from tests.data.sounds import RATE, noise, write, write_digits

HANDWRITING = {"train_strings": 120, "dev_strings": 20, "test_strings": 40}


def test_handwriting(tmp_path):
    seen = []
    summaries = prepare("handwriting", tmp_path / "a", **HANDWRITING, progress=lambda *now: seen.append(now))
    assert [summaries[split].examples for split in SPLITS] == [120, 20, 40]
    assert seen == [
        ("train", 50, 120),
        ("train", 100, 120),
        ("train", 120, 120),
        ("dev", 20, 20),
        ("test", 40, 40),
    ]
    used = {}
    for split in SPLITS:
        found = Prepared(tmp_path / "a", split)
        assert found.feature_dim == 8
        assert found.feature_config is None
        assert found.frame_shift_s == 0.01
        used[split] = set()
        lengths = {len(text_of(example)) for example in found.examples}
        assert lengths <= set(range(1 if split == "train" else 3, 9))
        assert len(lengths) >= 5
        for index, example in enumerate(found.examples):
            columns = found.features(index)
            assert columns.min() >= 0
            assert columns.max() <= 1
            ink = np.zeros(len(columns), bool)
            assert "".join(time.word for time in example.word_times) == text_of(example)
            for _, start_s, end_s in example.word_times:
                start, end = round(start_s * 100), round(end_s * 100)
                assert end - start == 16
                assert not ink[start:end].any()  # no two digits in one column
                ink[start:end] = True
                np.testing.assert_array_equal(columns[start:end:2], columns[start + 1 : end : 2])
                used[split].add(columns[start:end:2].tobytes())
            assert not columns[~ink].any()
            assert len(columns) - ink.sum() <= 4 * (len(text_of(example)) + 1)
    assert not used["train"] & used["test"]
    assert not used["train"] & used["dev"]
    assert not used["dev"] & used["test"]
    images, digits = handwriting.load_images()
    known = {image.T.tobytes(): digit for image, digit in zip(images, digits, strict=True)}
    assert set().union(*used.values()) <= set(known)  # real images, in [0, 1], without rounding
    first = Prepared(tmp_path / "a", "test")
    start = round(first.examples[0].word_times[0].start_s * 100)
    assert str(known[first.features(0)[start : start + 16 : 2].tobytes()]) == text_of(first.examples[0])[0]

    prepare("handwriting", tmp_path / "b", **HANDWRITING)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    prepare("handwriting", tmp_path / "c", **HANDWRITING, seed=1)
    assert contents(tmp_path / "a").keys() != contents(tmp_path / "c").keys()
    for split in SPLITS:
        assert Prepared(tmp_path / "a", split).digest() != Prepared(tmp_path / "c", split).digest()


def test_more_strings_do_not_change_the_first(tmp_path):
    prepare("handwriting", tmp_path / "a", **HANDWRITING)
    prepare("handwriting", tmp_path / "b", **{**HANDWRITING, "test_strings": 50})
    fewer, more = Prepared(tmp_path / "a", "test"), Prepared(tmp_path / "b", "test")
    assert more.examples[:40] == fewer.examples
    for index in (0, 39):
        np.testing.assert_array_equal(more.features(index), fewer.features(index))


def test_what_is_there_is_kept_and_what_is_not_is_made(tmp_path):
    prepare("handwriting", tmp_path, **HANDWRITING)
    before = states(tmp_path)
    (tmp_path / "dev.json").unlink()
    summaries = prepare("handwriting", tmp_path, **HANDWRITING)
    assert [summaries[split].examples for split in SPLITS] == [120, 20, 40]
    after = states(tmp_path)
    assert after.keys() == before.keys()
    changed = {path for path in before if before[path] != after[path]}
    assert changed
    assert all(path.startswith("dev") for path in changed)


def test_splits_say_what_they_are_made_from(tmp_path):
    corpus = corpus_of("handwriting", tmp_path, **HANDWRITING)
    prepare_corpus(corpus)
    origin = Prepared(tmp_path, "dev").origin
    assert origin == origin_of(corpus, None)
    assert origin["features"] is None
    assert origin["corpus"]["kind"] == "handwriting"
    assert origin["corpus"]["train_strings"] == 120
    assert "prepared" not in origin["corpus"]  # the folder can be moved


@pytest.fixture(scope="module")
def audiomnist(tmp_path_factory) -> Path:
    return write_digits(tmp_path_factory.mktemp("AudioMNIST") / "data")


@pytest.fixture
def manifests(tmp_path) -> dict[str, str]:
    paths = {}
    for n, split in enumerate(("train", "dev", "test-clean", "noisy")):
        lines = ["id\ttext\tpath\tduration"]
        for m in range(3):
            write(tmp_path / split / f"{m}.wav", noise(0.3, 10 * n + m))
            lines.append(f"{split}-{m}\tsome words\t{split}/{m}.wav\t0.3")
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        paths[split] = str(tmp_path / f"{split}.tsv")
    return paths


def test_own_manifests(manifests, tmp_path):
    corpus = corpus_of("manifests", tmp_path / "out", manifests=manifests, speeds=[0.9, 1.0])
    assert list(corpus.split_names()) == ["train", "dev", "test-clean", "noisy"]
    summaries = prepare_corpus(corpus, FeatureConfig(num_bins=20), check=LengthCheck(TokenConfig(), 2))
    assert {split: summary.examples for split, summary in summaries.items()} == {
        "train": 6, "dev": 3, "test-clean": 3, "noisy": 3
    }  # fmt: skip
    assert splits_in(tmp_path / "out") == ["dev", "noisy", "test-clean", "train"]
    assert [example.id for example in Prepared(tmp_path / "out", "train").examples][:2] == [
        "train-0_sp0.9",
        "train-0",
    ]
    assert {split: source.digest() for split, source in corpus.current_sources().items()} == {
        split: Prepared(tmp_path / "out", split).source_digest for split in manifests
    }
    with Path(manifests["dev"]).open("a") as file:
        file.write("dev-9\tsome words\tdev/1.wav\t0.3\n")
    changed = corpus.current_sources()
    assert changed["dev"].digest() != Prepared(tmp_path / "out", "dev").source_digest
    assert changed["train"].digest() == Prepared(tmp_path / "out", "train").source_digest
    Path(manifests["dev"]).unlink()  # prepared elsewhere: nobody can tell
    assert "dev" not in corpus.current_sources()
    with pytest.raises(ValueError, match=r"dev\.tsv: No such file or directory"):
        prepare_corpus(corpus)
    Path(manifests["dev"]).mkdir()
    with pytest.raises(ValueError, match=r"dev\.tsv: Is a directory"):
        prepare_corpus(corpus)


def test_bad_rows_of_own_manifests(manifests, tmp_path):
    (tmp_path / "train" / "1.wav").write_bytes(b"")
    options = {"manifests": manifests, "prepared": str(tmp_path / "out")}
    with pytest.raises(PreparationError, match=r"train\.tsv: 1 problem\s+train-1: .*the file is empty"):
        prepare_corpus(CORPORA.parse({"kind": "manifests", **options}))
    summaries = prepare_corpus(CORPORA.parse({"kind": "manifests", "skip_bad": True, **options}))
    assert [problem.id for problem in summaries["train"].skipped] == ["train-1"]
    assert summaries["train"].examples == 6
    assert summaries["dev"].skipped == ()


def test_stored_audio_has_speeds_to_be_heard_at(manifests, tmp_path):
    corpus = corpus_of("manifests", tmp_path / "out", manifests=manifests, store="audio")
    prepare_corpus(corpus, FeatureConfig(num_bins=20))
    train, dev = Prepared(tmp_path / "out", "train"), Prepared(tmp_path / "out", "dev")
    assert (train.storage.kind, train.storage.speeds) == ("audio", SPEEDS)
    assert dev.storage.speeds == (1.0,)
    assert len(train.examples) == 3
    expected = extract_features(load_audio(tmp_path / "dev" / "2.wav", RATE), FeatureConfig(num_bins=20))
    np.testing.assert_allclose(dev.features(2), expected, atol=1e-5)


def test_text_pairs(tmp_path):
    paths = {}
    for split, count in (("train", 60), ("dev", 5)):
        lines = ["id\ttext\ttranslation", *(f"{split}{n}\tSatz {n}\tsentence {n}" for n in range(count))]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        paths[split] = str(tmp_path / f"{split}.tsv")
    corpus = corpus_of("text-pairs", tmp_path / "out", manifests=paths)
    summaries = prepare_corpus(corpus)
    assert [summary.examples for summary in summaries.values()] == [60, 5]
    found = Prepared(tmp_path / "out", "dev")
    assert found.examples[4].texts == {"source": "Satz 4", "translation": "sentence 4"}
    with pytest.raises(ValueError, match="text-pairs is not audio: it has no features to choose"):
        prepare_corpus(corpus, FeatureConfig())


@pytest.mark.parametrize("kind", ["handwriting", "digit-strings"])
def test_sources_are_light_enough_for_every_process(kind, audiomnist, tmp_path):
    options = {"source": audiomnist, **DIGITS} if kind == "digit-strings" else HANDWRITING
    source = corpus_of(kind, tmp_path, **options).sources()["train"]
    item = next(source.items())
    loaded = source.load(item)
    copy = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 30_000
    again = copy.load(item)
    assert again.texts == loaded.texts
    data = "samples" if kind == "digit-strings" else "features"
    np.testing.assert_array_equal(getattr(again, data), getattr(loaded, data))


def problems_of(content: dict) -> str:
    with pytest.raises((SectionError, KeyedError)) as caught:
        CORPORA.parse({"prepared": "x", **content})
    error = caught.value
    return (
        describe_problems(error.error, error.config, "here")
        if isinstance(error, SectionError)
        else str(error)
    )


def test_wrong_names_get_the_nearest(tmp_path):
    assert "no corpus 'handwritting': did you mean 'handwriting'?" in problems_of({"kind": "handwritting"})
    assert "no corpus 'digits': did you mean 'digit-strings'?" in problems_of({"kind": "digits"})
    assert f"There are: aishell1, aishell2, {', '.join([*CORPORA][2:])}" in problems_of({"kind": "xyz"})
    assert {"librispeech", "manifests", "text-pairs", "multi30k", "spoken-text"} <= {*CORPORA}
    assert "required; there are: aishell1, aishell2, " in problems_of({})
    wrong = problems_of({"kind": "handwriting", "train_string": 3})
    assert wrong == "here: train_string: unknown key; did you mean train_strings?"
    wrong = problems_of({"kind": "handwriting", "train_strings": 0})
    assert wrong == "here: train_strings: input should be greater than or equal to 1, got 0"
    assert problems_of({"kind": "grid"}) == "here: source: missing"
    assert "min_digits 9 is above max_digits 8" in problems_of({"kind": "handwriting", "min_digits": 9})
    assert "manifests: needs at least train and dev" in problems_of(
        {"kind": "manifests", "manifests": {"train": "x"}}
    )
    assert "speeds.0" in problems_of({"kind": "grid", "source": "x", "speeds": [0.3]})
    with pytest.raises(ValidationError):
        handwriting.HandwritingConfig(prepared="x", kind="grid")


def test_columns_have_no_features_to_choose(tmp_path):
    with pytest.raises(ValueError, match="handwriting is not audio: it has no features to choose"):
        prepare("handwriting", tmp_path, features=FeatureConfig(), **HANDWRITING)
