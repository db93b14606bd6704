"""Whether texts fit into their frames: found once for a tokenizer, kept, and found again for another."""

import json
from pathlib import Path

import numpy as np
import pytest

from brctc.data import (
    FeatureConfig,
    LengthCheck,
    PreparationError,
    Prepared,
    Row,
    RowSource,
    Storage,
    TokenConfig,
    Tokenizer,
    extract_features,
    prepare_split,
)
from brctc.data.audio import change_speed
from brctc.data.checks import LabelCounts, check_file_of
from brctc.data.text_checks import checked_labels
from tests.data.folders import states
from tests.data.sounds import noise, write
from tests.data.splits import ArrayItem, ArraySource, write_split

CONFIG = FeatureConfig(num_bins=20)
TEXTS = ["one two", "three", "two two", "one one three two", "five"]


@pytest.fixture
def split(tmp_path) -> Prepared:
    return write_split(
        tmp_path, "train", {f"u{n}": (text, np.zeros((30, 4)), None) for n, text in enumerate(TEXTS)}
    )


def words(texts=("one two three",)) -> Tokenizer:
    return Tokenizer.train(texts, TokenConfig(kind="word"))


def test_what_a_tokenizer_makes_of_a_split(split):
    expected = LabelCounts(labels=10, unknown=1, example="u4", fewest=1, most=4, texts=5)
    assert checked_labels(split, LengthCheck(words(), 1)) == expected
    letters = Tokenizer.train(TEXTS, TokenConfig())
    lengths = [len(text) for text in TEXTS]
    assert checked_labels(split, LengthCheck(letters, 1)) == LabelCounts(sum(lengths), 0, "", 4, 17, 5)
    pieces = Tokenizer.train(TEXTS * 3, TokenConfig(kind="bpe", size=14))
    found = checked_labels(split, LengthCheck(pieces, 1))
    assert found.labels == sum(len(pieces.encode(text)) for text in TEXTS)


def test_it_is_found_once(split, monkeypatch):
    check = LengthCheck(words(), 1)
    found = checked_labels(split, check)
    path = check_file_of(split.directory, "train", check)
    assert path.is_file()
    monkeypatch.setattr(Prepared, "iterate_heard", lambda self: 1 / 0)
    assert checked_labels(Prepared(split.directory, "train"), check) == found
    for other in (
        LengthCheck(words(["one two"]), 1),
        LengthCheck(words(), 2),
        LengthCheck(words(), 1, text="translation"),
        LengthCheck(words(), 1, too_long="ignored"),
    ):
        with pytest.raises(ZeroDivisionError):
            checked_labels(split, other)


def test_it_is_found_again_for_another_split_of_the_name(split):
    check = LengthCheck(words(), 1)
    checked_labels(split, check)
    other = write_split(split.directory, "train", {"v": ("one", np.zeros((30, 4)), None)})
    assert checked_labels(other, check) == LabelCounts(1, 0, "", 1, 1, 1)


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{}", '{"of": 1}', "5", '{"of": "KEY"}', '{"labels": {"x": 1}, "of": "KEY"}', "[" * 999],
)
def test_a_damaged_result_is_found_again(split, damage):
    check = LengthCheck(words(), 1)
    found = checked_labels(split, check)
    path = check_file_of(split.directory, "train", check)
    good = path.read_text()
    path.write_text(damage.replace("KEY", split.key))
    assert checked_labels(split, check) == found
    assert path.read_text() == good


def test_a_preparation_stores_what_it_has_checked(tmp_path, monkeypatch):
    items = [ArrayItem(f"u{n}", {"transcript": text}, np.zeros((30, 4))) for n, text in enumerate(TEXTS)]
    check = LengthCheck(words(), 1)
    prepare_split(ArraySource(items), tmp_path, "train", Storage("features", None, 4, 0.01), check=check)
    stored = states(tmp_path)
    expected = LabelCounts(10, 1, "u4", 1, 4, 5)
    found = Prepared(tmp_path, "train")
    assert checked_labels(found, check) == expected
    assert states(tmp_path) == stored
    check_file_of(tmp_path, "train", check).unlink()
    assert checked_labels(found, check) == expected  # as found afterwards


@pytest.mark.parametrize("kind", ["features", "audio"])
def test_the_same_is_found_while_and_after_preparing(tmp_path, kind):
    rows = [
        Row(f"u{n}", text, write(tmp_path / f"{n}.wav", noise(0.5, n)), 0.5) for n, text in enumerate(TEXTS)
    ]
    check = LengthCheck(words(), 4)
    storage = Storage.of_audio(CONFIG, kind, (0.9, 1.0, 1.1))
    prepare_split(RowSource(rows), tmp_path / "out", "train", storage, check=check)
    split = Prepared(tmp_path / "out", "train")
    found = checked_labels(split, check)
    assert found.texts == 15
    check_file_of(split.directory, "train", check).unlink()
    again = checked_labels(split, check)
    assert again.example.removesuffix("_sp0.9") == found.example.removesuffix("_sp0.9") == "u4"
    found.example = again.example
    assert again == found


def test_every_text_that_is_too_long_is_named(split):
    letters = Tokenizer.train(TEXTS, TokenConfig())
    with pytest.raises(PreparationError) as caught:
        checked_labels(split, LengthCheck(letters, 4))  # 30 frames: 6 are left
    assert [problem.id for problem in caught.value.problems] == ["u0", "u2", "u3"]
    assert str(caught.value).startswith(f"{split.directory} (train): 3 problems")
    assert "u0: the transcript is too long: its 7 tokens (char) need 7 frames, the audio has 6" in str(
        caught.value
    )
    assert not check_file_of(split.directory, "train", LengthCheck(letters, 4)).exists()
    assert checked_labels(split, LengthCheck(letters, 4, too_long="ignored")).labels == 40


def test_repeated_tokens_need_a_frame_between(tmp_path):
    split = write_split(tmp_path, "x", {"u": ("aabb", np.zeros((5, 4)), None)})
    letters = Tokenizer.train(["ab"], TokenConfig())
    with pytest.raises(PreparationError, match=r"its 4 tokens .* need 6 frames, the audio has 5"):
        checked_labels(split, LengthCheck(letters, 1))
    other = write_split(tmp_path, "y", {"u": ("abab", np.zeros((4, 4)), None)})
    assert checked_labels(other, LengthCheck(letters, 1)).most == 4


def test_a_text_that_is_not_there(split):
    with pytest.raises(PreparationError, match="u3: there is no translation"):
        checked_labels(split, LengthCheck(words(), 1, text="translation"))


def test_a_second_text(tmp_path):
    items = [ArrayItem("u", {"transcript": "one", "translation": "a b c"}, np.zeros((30, 4)))]
    prepare_split(ArraySource(items), tmp_path, "train", Storage("features", None, 4, 0.01))
    split = Prepared(tmp_path, "train")
    assert checked_labels(split, LengthCheck(words(["a b c"]), 1, text="translation")).labels == 3


def test_texts_alone_have_no_frames_to_fit_into(tmp_path):
    rows = [Row("t", "ein zwei drei", translation="one two three")]
    prepare_split(RowSource(rows), tmp_path, "train", Storage("text"))
    split = Prepared(tmp_path, "train")
    assert checked_labels(split, LengthCheck(words(["ein zwei drei"]), 4, text="source")).labels == 3


def test_a_folder_that_others_own_is_checked_at_every_start(split):
    (split.directory / "train.checks").write_text("in the way")
    assert checked_labels(split, LengthCheck(words(), 1)).labels == 10


def test_stored_audio_is_checked_at_the_speeds_it_is_heard_at(tmp_path):
    """It fits as it is stored, but not when it is played faster."""
    path = write(tmp_path / "a.wav", noise(1.0))
    rows = [Row("just", "abcdefghij klmnopqrstuvw", path, 1.0)]  # 24 characters, 24 frames
    storage = Storage.of_audio(CONFIG, "audio", (1.0, 1.1))
    prepare_split(RowSource(rows), tmp_path / "out", "train", storage)
    split = Prepared(tmp_path / "out", "train")
    letters = Tokenizer.train([rows[0].text], TokenConfig())
    with pytest.raises(PreparationError) as caught:
        checked_labels(split, LengthCheck(letters, 4))
    assert [problem.id for problem in caught.value.problems] == ["just_sp1.1"]
    with pytest.raises(PreparationError, match=r"just_sp1\.1: the transcript is too long"):
        prepare_split(RowSource(rows), tmp_path / "2", "train", storage, check=LengthCheck(letters, 4))
    skipping = LengthCheck(letters, 4)
    rows.append(Row("short", "abc", path, 1.0))
    summary = prepare_split(RowSource(rows), tmp_path / "3", "train", storage, check=skipping, skip_bad=True)
    assert [example.id for example in Prepared(tmp_path / "3", "train").examples] == ["short"]
    assert [problem.id for problem in summary.skipped] == ["just_sp1.1"]


ON_EDGES = [n for n in range(1600, 30_000) if -(-n * 10 // 11) % 160 == 80 and 0 < 10 * n % 11 < 5][:3]
"""At 1.1 times the speed their last frame hangs on one sample, which rounding would lose."""


@pytest.mark.parametrize("samples", [1600, 1601, 2399, 2400, 2407, 15999, 16000, 16001, 20077, *ON_EDGES])
def test_frames_of_stored_audio_at_its_speeds(tmp_path, samples):
    """As many as there will be when it is played."""
    path = write(tmp_path / "a.wav", noise(2)[:samples])
    speeds = (0.5, 0.9, 0.93, 1.0, 1.1, 1.37, 2.0)
    storage = Storage.of_audio(CONFIG, "audio", speeds)
    prepare_split(RowSource([Row("u", "x", path, samples / 16000)]), tmp_path / "out", "train", storage)
    heard = list(Prepared(tmp_path / "out", "train").iterate_heard())
    assert [example.id for example in heard] == [
        "u_sp0.5", "u_sp0.9", "u_sp0.93", "u", "u_sp1.1", "u_sp1.37", "u_sp2"
    ]  # fmt: skip
    expected = [len(extract_features(change_speed(noise(2)[:samples], speed), CONFIG)) for speed in speeds]
    assert [example.num_frames for example in heard] == expected


def test_skipping_depends_on_the_check(tmp_path):
    """What is left out for one check is there for another."""
    path = write(tmp_path / "a.wav", noise(1.0))
    rows = [Row("long", "abcdefghijklmnopqrstuvwxyz", path, 1.0), Row("short", "abc", path, 1.0)]
    storage = Storage.of_audio(CONFIG, "features", (1.0,))
    kept = []
    for subsampling in (4, 2, 4):
        check = LengthCheck(TokenConfig(), subsampling)
        prepare_split(RowSource(rows), tmp_path / "out", "train", storage, check=check, skip_bad=True)
        kept.append([example.id for example in Prepared(tmp_path / "out", "train").examples])
    assert kept == [["short"], ["long", "short"], ["short"]]


def test_results_of_splits_whose_names_begin_alike(tmp_path):
    check = LengthCheck(words(), 1)
    for split, text in (("train", "one"), ("train-2", "one two")):
        write_split(tmp_path, split, {"u": (text, np.zeros((30, 4)), None)})
    found = [
        checked_labels(Prepared(tmp_path, split), check).labels for split in ("train", "train-2", "train")
    ]
    assert found == [1, 2, 1]


def test_a_digest_is_of_what_is_checked():
    digests = {
        LengthCheck(TokenConfig(), 4).digest(),
        LengthCheck(TokenConfig(kind="word"), 4).digest(),
        LengthCheck(words(), 4).digest(),
        LengthCheck(words(["four"]), 4).digest(),
        LengthCheck(words(), 2).digest(),
    }
    assert len(digests) == 5
    assert LengthCheck(words(), 4).digest() == LengthCheck(words(), 4).digest()


def test_what_is_stored_is_json(split):
    check = LengthCheck(words(), 1)
    checked_labels(split, check)
    path = check_file_of(split.directory, "train", check)
    assert path.parent == Path(split.directory) / "train.checks"
    assert json.loads(path.read_text())["of"] == split.key
