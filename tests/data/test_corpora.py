"""The corpora built in: what they promise of splits, times and repeatability."""

import logging
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
    fbank,
    load_audio,
    prepare_corpus,
    read_manifest,
    write_manifest,
)
from brctc.data.corpora import handwriting
from brctc.data.corpora.digit_strings import NOISE_RMS, SPEECH_RMS, WORDS, find_recordings, load_clips
from brctc.data.prepare_corpus import origin_of
from brctc.data.split import splits_in
from tests.data.folders import contents, states
from tests.data.sounds import DATA, RATE, cut_off, needs, noise, write, write_digits, write_sentences

SPLITS = ("train", "dev", "test")


def corpus_of(kind: str, prepared: Path, **options):
    return CORPORA.parse({"kind": kind, "prepared": str(prepared), **options})


def prepare(kind: str, prepared: Path, *, features=None, jobs=1, progress=None, **options):
    return prepare_corpus(corpus_of(kind, prepared, **options), features, jobs=jobs, progress=progress)


def text_of(example) -> str:
    return example.texts["transcript"]


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


DIGITS = {
    "train_strings": 30,
    "dev_strings": 6,
    "test_strings": 8,
    "dev_speakers": 1,
    "test_speakers": 2,
    "max_digits": 5,
}


@pytest.fixture(scope="module")
def audiomnist(tmp_path_factory) -> Path:
    return write_digits(tmp_path_factory.mktemp("AudioMNIST") / "data")


def test_digit_strings_from_the_published_layout(audiomnist, tmp_path):
    out = tmp_path / "a"
    summaries = prepare("digit-strings", out, source=audiomnist, **DIGITS)
    assert [summaries[split].examples for split in SPLITS] == [90, 6, 8]
    speakers = {}
    for split in SPLITS:
        found = Prepared(out, split)
        assert found.feature_dim == 80
        assert found.feature_config == FeatureConfig()
        speakers[split] = {example.speaker for example in found.examples}
        for index, example in enumerate(found.examples):
            words = text_of(example).split()
            assert [time.word for time in example.word_times] == words
            assert set(words) <= set(WORDS)
            assert (1 if split == "train" else 3) <= len(words) <= 5
            end = 0.0
            for word, start_s, end_s in example.word_times:
                speed = 0.9 if "_sp0.9" in example.id else 1.1 if "_sp1.1" in example.id else 1.0
                assert 0 <= (start_s - end) * speed <= 0.3 + 1e-5
                expected_s = (20 + WORDS.index(word) + int(example.speaker)) / 100 / speed
                assert end_s - start_s == pytest.approx(expected_s, abs=2e-4)
                end = end_s
                # the tone sounds between these times, and only noise before the first
                level = found.features(index).max(1)
                assert level[round((start_s + end_s) * 50)] > -2
            silent = level[: max(0, round(example.word_times[0].start_s * 100) - 2)]
            assert (silent < -5).all()
            assert (example.duration_s - end) * speed <= 0.3 + 0.01
    assert [len(speakers[split]) for split in SPLITS] == [2, 1, 2]
    assert len(set().union(*speakers.values())) == 5
    ids = [example.id for example in Prepared(out, "train").examples]
    assert {i.removesuffix("_sp0.9").removesuffix("_sp1.1") for i in ids} == {
        f"train-{i:05d}" for i in range(30)
    }
    lengths = {len(text_of(example).split()) for example in Prepared(out, "train").examples}
    assert lengths == {1, 2, 3, 4, 5}
    prepare("digit-strings", tmp_path / "b", source=audiomnist.parent, **DIGITS)  # data/01/...
    for split in SPLITS:
        assert Prepared(out, split).digest() == Prepared(tmp_path / "b", split).digest()


@pytest.mark.slow
def test_digit_strings_do_not_depend_on_the_number_of_processes(audiomnist, tmp_path):
    options = {**DIGITS, "train_strings": 120, "source": audiomnist, "speeds": (1.0,)}
    for jobs in (1, 2):
        prepare("digit-strings", tmp_path / str(jobs), jobs=jobs, **options)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_changed_recordings_are_noticed(audiomnist, tmp_path):
    source = write_digits(tmp_path / "data")
    corpus = corpus_of("digit-strings", tmp_path / "out", source=source, **DIGITS)
    before = {split: made.digest() for split, made in corpus.sources().items()}
    assert before == {split: made.digest() for split, made in corpus.sources().items()}
    for path in source.glob("*/3_*.wav"):  # as long as before
        samples = len(load_audio(path, 48000))
        write(path, 0.1 * noise(1, rate=48000)[:samples], 48000)
    after = {split: made.digest() for split, made in corpus.sources().items()}
    assert all(before[split] != after[split] for split in SPLITS)


def test_levels_are_made_equal(audiomnist):
    for rows in find_recordings(audiomnist).values():
        for clips in load_clips(rows, RATE).values():
            assert np.sqrt(np.square(clips[0]).mean()) == pytest.approx(SPEECH_RMS, rel=1e-3)
    assert NOISE_RMS < SPEECH_RMS / 50


def test_digit_strings_need_good_recordings(audiomnist, tmp_path):
    with pytest.raises(ValueError, match=r"holds neither manifest\.tsv nor AudioMNIST"):
        prepare("digit-strings", tmp_path / "out", source=tmp_path)
    with pytest.raises(ValueError, match="5 speakers; dev_speakers 4 and test_speakers 12 leave none"):
        prepare("digit-strings", tmp_path / "out", source=audiomnist)
    write(tmp_path / "a.wav", noise(0.5))
    write(tmp_path / "b.wav", 0 * noise(0.5))
    header = "id\tspeaker\ttext\tpath\tduration\n"
    (tmp_path / "m.tsv").write_text(header + "u1\t\tone\ta.wav\t0.5\nu2\ts\tone two\ta.wav\t0.5\n")
    with pytest.raises(PreparationError, match=r"2 problems\s+u1: the speaker is empty\s+u2: .*'one two'"):
        prepare("digit-strings", tmp_path / "out", source=tmp_path / "m.tsv")
    (tmp_path / "m.tsv").write_text(
        header + "".join(f"{s}-{f}\t{s}\tone\t{f}.wav\t0.5\n" for s in "xyz" for f in "ab")
    )
    one_each = {"dev_speakers": 1, "test_speakers": 1}
    with pytest.raises(PreparationError, match=r"1 problem\s+speaker .: .-b: .*b\.wav: silence") as caught:
        prepare("digit-strings", tmp_path / "out", source=tmp_path / "m.tsv", **one_each)
    assert len(caught.value.problems) == 1  # of thousands of strings that would need it
    cut_off(tmp_path / "b.wav")
    with pytest.raises(PreparationError, match=r"1 problem\s+speaker .: .-b: .*b\.wav: truncated"):
        prepare("digit-strings", tmp_path / "out", source=tmp_path / "m.tsv", **one_each)
    assert splits_in(tmp_path / "out") == []


@needs("audiomnist")
def test_digit_strings_from_real_recordings(tmp_path):
    sizes = {"train_strings": 12, "dev_strings": 4, "test_strings": 12, "speeds": (1.0,)}
    prepare("digit-strings", tmp_path, source=DATA / "audiomnist", **sizes)
    rows = read_manifest(DATA / "audiomnist" / "manifest.tsv")
    clips = {(row.speaker, row.text, row.num_samples) for row in rows}
    speakers = []
    for split in SPLITS:
        found = Prepared(tmp_path, split)
        speakers.append({example.speaker for example in found.examples})
        for example in found.examples:
            assert [time.word for time in example.word_times] == text_of(example).split()
            for word, start_s, end_s in example.word_times:
                assert (example.speaker, word, round((end_s - start_s) * RATE)) in clips
    assert not speakers[0] & speakers[2]
    assert not speakers[0] & speakers[1]
    assert len(speakers[2]) == 12


@needs("grid_s1")
def test_grid(tmp_path):
    rows = {row.id: row for row in read_manifest(DATA / "grid_s1" / "manifest.tsv")[::25]}
    write_manifest(tmp_path / "m.tsv", list(rows.values()))
    sizes = {"dev_sentences": 5, "test_sentences": 15}
    summaries = prepare("grid", tmp_path / "a", source=tmp_path / "m.tsv", **sizes)
    assert [summaries[split].examples for split in SPLITS] == [60, 5, 15]
    ids = []
    for split in SPLITS:
        for example in Prepared(tmp_path / "a", split).examples:
            if "_sp" in example.id:
                continue
            ids.append(example.id)
            row = rows[example.id]
            assert text_of(example) == row.text
            assert example.word_times == row.word_times
            assert example.duration_s == pytest.approx(row.duration, abs=0.005)
    assert sorted(ids) == sorted(rows)
    with pytest.raises(ValueError, match="40 sentences, dev and test alone take 40"):
        prepare("grid", tmp_path / "b", source=tmp_path / "m.tsv", dev_sentences=20, test_sentences=20)


def test_grid_of_a_folder_is_divided_by_its_seed(tmp_path, monkeypatch):
    write_sentences(tmp_path / "grid")
    sizes = {"dev_sentences": 3, "test_sentences": 5, "speeds": (1.0,)}

    def divided(seed: int, source: Path | str = tmp_path / "grid") -> dict[str, list[str]]:
        corpus = corpus_of("grid", tmp_path / "out", source=source, seed=seed, **sizes)
        return {split: [row.id for row in source.items()] for split, source in corpus.sources().items()}

    found = divided(0)
    assert [len(found[split]) for split in SPLITS] == [12, 3, 5]
    assert sorted(id for ids in found.values() for id in ids) == sorted(f"s{n}" for n in range(20))
    assert divided(0) == found != divided(1)
    prepare("grid", tmp_path / "out", source=tmp_path / "grid", **sizes)
    before = {path: state for path, state in states(tmp_path / "out").items() if "/" in path}
    monkeypatch.chdir(tmp_path)
    prepare("grid", Path("out"), source="grid", **sizes)  # the same files, called otherwise
    assert {path: state for path, state in states(tmp_path / "out").items() if "/" in path} == before


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
    assert corpus.current_digests() == {
        split: Prepared(tmp_path / "out", split).source_digest for split in manifests
    }
    with Path(manifests["dev"]).open("a") as file:
        file.write("dev-9\tsome words\tdev/1.wav\t0.3\n")
    changed = corpus.current_digests()
    assert changed["dev"] != Prepared(tmp_path / "out", "dev").source_digest
    assert changed["train"] == Prepared(tmp_path / "out", "train").source_digest
    Path(manifests["dev"]).unlink()  # prepared elsewhere: nobody can tell
    assert "dev" not in corpus.current_digests()
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
    expected = fbank(load_audio(tmp_path / "dev" / "2.wav", RATE), FeatureConfig(num_bins=20))
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


LINES = {
    "train-clean-5": {"1-10": ["THE FIRST LINE", "A SECOND ONE"], "2-20": ["ANOTHER SPEAKER SAYS THIS"]},
    "dev-clean-2": {"3-30": ["SOMETHING TO WATCH"]},
    "test-clean": {"4-40": ["SOMETHING TO TEST WITH", "AND MORE"]},
}


@pytest.fixture
def librispeech(tmp_path) -> Path:
    """Miniature of the published layout: PART/SPEAKER/CHAPTER/SPEAKER-CHAPTER-0000.flac and .trans.txt."""
    folder = tmp_path / "LibriSpeech"
    for part, chapters in LINES.items():
        for chapter, texts in chapters.items():
            below = folder / part / chapter.replace("-", "/")
            lines = []
            for n, text in enumerate(texts):
                id = f"{chapter}-{n:04d}"
                write(below / f"{id}.flac", noise(1 + n, int(chapter[0]) + n))
                lines.append(f"{id} {text}")
            (below / f"{chapter}.trans.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_librispeech(librispeech, tmp_path):
    corpus = corpus_of("librispeech", tmp_path / "out", source=librispeech)
    assert list(corpus.split_names()) == ["train", "dev", "test-clean"]
    summaries = prepare_corpus(corpus)
    assert {split: summary.examples for split, summary in summaries.items()} == {
        "train": 9, "dev": 1, "test-clean": 2
    }  # fmt: skip
    assert summaries["train"].speakers == 2
    train = Prepared(tmp_path / "out", "train")
    plain = {example.id: example for example in train.examples if "_sp" not in example.id}
    assert {id: text_of(example) for id, example in plain.items()} == {
        "1-10-0000": "THE FIRST LINE",
        "1-10-0001": "A SECOND ONE",
        "2-20-0000": "ANOTHER SPEAKER SAYS THIS",
    }
    assert list(plain) == sorted(plain)
    assert {example.speaker for example in plain.values()} == {"1", "2"}
    assert [example.duration_s for example in plain.values()] == [1.0, 2.0, 1.0]
    test = Prepared(tmp_path / "out", "test-clean")
    flac = librispeech / "test-clean" / "4" / "40" / "4-40-0001.flac"
    expected = fbank(load_audio(flac, RATE), FeatureConfig())
    np.testing.assert_array_equal(test.features(1), expected.astype(np.float16))
    before = states(tmp_path / "out")
    prepare_corpus(corpus)
    assert states(tmp_path / "out") == before


def test_librispeech_that_is_not_there(librispeech, tmp_path):
    with pytest.raises(ValueError, match=rf"{librispeech} has none of train-clean-100, train-clean-360$"):
        prepare(
            "librispeech", tmp_path, source=librispeech, train_parts=["train-clean-100", "train-clean-360"]
        )
    with pytest.raises(ValueError, match=rf"{librispeech} has none of dev-clean$"):
        prepare("librispeech", tmp_path, source=librispeech, dev_parts=["dev-clean"])
    with pytest.raises(ValueError, match="has none of train-clean-100"):
        prepare("librispeech", tmp_path, source=tmp_path / "nowhere")


def test_damaged_files_of_librispeech_are_named(librispeech, tmp_path):
    flac = librispeech / "test-clean" / "4" / "40" / "4-40-0001.flac"
    cut_off(flac)
    with pytest.raises(PreparationError, match=r"1 problem\s+4-40-0001: .*4-40-0001\.flac: truncated"):
        prepare("librispeech", tmp_path / "out", source=librispeech, store="audio")
    flac.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{flac}"):
        prepare("librispeech", tmp_path / "out", source=librispeech, store="audio")


def test_lines_of_librispeech_without_audio_are_told(librispeech, tmp_path, caplog):
    (librispeech / "test-clean" / "4" / "40" / "4-40-0001.flac").unlink()
    with caplog.at_level(logging.WARNING):
        summaries = prepare("librispeech", tmp_path / "out", source=librispeech, store="audio")
    assert summaries["test-clean"].examples == 1
    assert any("4-40-0001.flac" in record.getMessage() for record in caplog.records)


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
    assert f"There are: bass, digit-strings, {', '.join([*CORPORA][2:])}" in problems_of({"kind": "xyz"})
    assert {"librispeech", "manifests", "text-pairs", "multi30k", "spoken-text"} <= {*CORPORA}
    assert "required; there are: bass, digit-strings, " in problems_of({})
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
