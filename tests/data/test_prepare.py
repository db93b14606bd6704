"""A source becomes a split; each kind of fault is found, in one go."""

import dataclasses
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from brctc.data import (
    FeatureConfig,
    PreparationError,
    Prepared,
    Row,
    RowSource,
    Storage,
    TokenConfig,
    extract_features,
    load_audio,
    prepare_split,
    write_manifest,
)
from brctc.data.checks import LengthCheck
from brctc.data.prepare import LEAST_ITEMS
from brctc.data.split import splits_in
from tests.data.folders import contents, states
from tests.data.preparing import CONFIG, good_rows, prepare, storage
from tests.data.sounds import RATE, cut_off, noise, write
from tests.data.splits import write_split


@pytest.fixture
def good(tmp_path):
    return good_rows(tmp_path)


def test_features_are_those_of_the_audio(good, tmp_path):
    manifest = tmp_path / "train.tsv"
    write_manifest(manifest, good)
    summary = prepare(manifest, tmp_path / "out")
    found = Prepared(tmp_path / "out", "train")
    assert [example.id for example in found.examples] == [row.id for row in good]
    for index, (example, row) in enumerate(zip(found.examples, good, strict=True)):
        assert example.texts == {"transcript": row.text}
        assert (example.speaker, example.word_times) == (row.speaker, row.word_times)
        assert example.duration_s == pytest.approx(row.duration)
        expected = extract_features(
            load_audio(row.path, RATE, row.start_sample or 0, row.num_samples), CONFIG
        )
        assert example.num_frames == len(expected)
        np.testing.assert_allclose(found.features(index), expected, atol=0.01)
        np.testing.assert_array_equal(found.features(index), expected.astype(np.float16))
    assert summary.split == "train"
    assert summary.examples == len(found) == 5
    assert summary.duration_s == found.duration_s == pytest.approx(3.1)
    assert summary.num_frames == sum(example.num_frames for example in found.examples)
    assert summary.words == 6
    assert summary.speakers == 2
    assert summary.resampled == (8000,)
    assert summary.skipped == ()
    assert found.longest == ("a", 1.0)
    assert found.feature_config == CONFIG


def test_speeds(good, tmp_path):
    prepare(good[:1], tmp_path / "out", speeds=(0.9, 1.0, 1.1))
    slow, plain, fast = Prepared(tmp_path / "out", "train").examples
    assert [slow.id, plain.id, fast.id] == ["a_sp0.9", "a", "a_sp1.1"]
    assert [slow.num_frames, plain.num_frames, fast.num_frames] == [111, 100, 91]
    assert slow.word_times == (("two", 0.111111, 0.333333), ("words", 0.333333, 0.888889))
    assert plain.word_times == good[0].word_times
    assert fast.texts == {"transcript": "two words"}
    assert fast.speaker == "s1"


@pytest.mark.parametrize("speed", [0.4, 2.1, 0.905, 0.0, -1.0])
def test_speeds_are_whole_hundredths(speed):
    with pytest.raises(ValueError, match=re.escape(f"speeds has {speed:g}, expected 0.5 to 2")):
        storage((1.0, speed))


def test_progress_and_repeatability(good, tmp_path):
    many = [dataclasses.replace(row, id=f"{row.id}{n}") for n in range(23) for row in good]
    seen = []
    for name in ("one", "two"):
        prepare(many, tmp_path / name, progress=lambda *now: seen.append(now))
    assert LEAST_ITEMS == 50
    assert seen == 2 * [(50, 115), (100, 115), (115, 115)]  # after every shard
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    cuts = next((tmp_path / "one").rglob("cuts.000000.jsonl.gz"))
    assert cuts.read_bytes()[4:8] == bytes(4)  # gzip's clock


def test_what_is_up_to_date_is_kept(good, tmp_path):
    manifest = tmp_path / "train.tsv"
    many = [dataclasses.replace(row, id=f"{row.id}{n}") for n in range(23) for row in good]
    write_manifest(manifest, many)
    first = prepare(manifest, tmp_path / "out")
    before = states(tmp_path / "out")
    seen = []
    assert prepare(manifest, tmp_path / "out", progress=lambda *now: seen.append(now)) == first
    assert states(tmp_path / "out") == before
    assert seen == []
    lines = manifest.read_text().splitlines()
    commented = [f"{line}\t{'comment' if n == 0 else n}" for n, line in enumerate(lines)]
    manifest.write_text("\n".join(commented) + "\n")  # a column that means nothing
    prepare(manifest, tmp_path / "out")
    assert states(tmp_path / "out") == before


def test_the_same_files_by_another_path_are_kept(good, tmp_path, monkeypatch):
    """The command may run in another folder tomorrow."""
    write_manifest(tmp_path / "train.tsv", good)
    prepare(tmp_path / "train.tsv", tmp_path / "out")
    before = states(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    prepare("train.tsv", "out")
    assert states(tmp_path / "out") == before
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    prepare("../train.tsv", "../out")
    assert states(tmp_path / "out") == before


@pytest.mark.parametrize("change", ["mtime", "content", "size", "text", "speeds", "features", "lost", "cut"])
def test_what_has_changed_is_prepared_again(good, tmp_path, change):
    manifest, out = tmp_path / "train.tsv", tmp_path / "out"
    write_manifest(manifest, good)
    prepare(manifest, out)
    old, before = Prepared(out, "train"), contents(out)
    speeds, config, audio = (1.0,), CONFIG, tmp_path / "audio" / "a.wav"
    if change == "mtime":
        os.utime(audio, ns=(0, 10**18))
    elif change == "content":
        size = audio.stat().st_size
        assert write(audio, noise(1.0, 99)).stat().st_size == size
    elif change == "size":
        write(audio, noise(0.95, 11))
    elif change == "text":
        manifest.write_text(manifest.read_text().replace("\tlate\t", "\tLATE\t"))
    elif change == "speeds":
        speeds = (1.0, 1.1)
    elif change == "features":
        config = FeatureConfig(num_bins=40)
    elif change == "lost":
        next(out.rglob("*.tar")).unlink()
    elif change == "cut":
        cut_off(next(out.rglob("*.jsonl.gz")))
    prepare_split(RowSource(manifest), out, "train", Storage.of_audio(config, "features", speeds))
    new = Prepared(out, "train")
    new.verify()
    assert len(list(out.glob("train-*"))) == 1  # the old shards are gone
    assert len(new.examples) == 5 * len(speeds)
    if change in ("mtime", "lost", "cut"):
        assert old.digest() == new.digest()
    else:
        assert old.digest() != new.digest()
    assert (old.key == new.key) == (change in ("lost", "cut"))
    if change in ("lost", "cut"):
        assert contents(out) == before
    if change == "size":
        assert new.examples[0].num_frames == 95
    prepared_at = states(out)
    prepare_split(RowSource(manifest), out, "train", Storage.of_audio(config, "features", speeds))
    assert states(out) == prepared_at


def test_changed_audio_that_is_wrong_leaves_the_old_split(good, tmp_path):
    """Also where shards before the wrong one have changed and could be made."""
    audio = [write(tmp_path / "audio" / f"{n}.wav", noise(0.2, n)) for n in range(120)]
    rows = [Row(f"u{n}", "x", path, 0.2) for n, path in enumerate(audio)]
    prepare(rows, tmp_path / "out")
    before = states(tmp_path / "out")
    write(audio[3], noise(0.21, 500))
    audio[110].write_bytes(b"")
    with pytest.raises(PreparationError, match=r"1 problem\s+u110: .*the file is empty"):
        prepare(rows, tmp_path / "out")
    old = Prepared(tmp_path / "out", "train")
    old.verify()
    assert {path: state for path, state in states(tmp_path / "out").items() if path in before} == before
    write(audio[110], noise(0.2, 501))
    prepare(rows, tmp_path / "out")
    new = Prepared(tmp_path / "out", "train")
    assert new.examples[3].num_frames == 21
    np.testing.assert_array_equal(
        new.features(110), extract_features(load_audio(audio[110], RATE), CONFIG).astype(np.float16)
    )


@pytest.mark.parametrize("damage", ["", "[]", "{", "null", '{"format": 2}', '{"format": 2, "key": 5}'])
def test_a_damaged_description_is_written_anew(good, tmp_path, damage):
    prepare(good, tmp_path)
    before = contents(tmp_path)
    (tmp_path / "train.json").write_text(damage)
    prepare(good, tmp_path)
    assert contents(tmp_path) == before


def test_every_damaged_key_is_written_anew(good, tmp_path):
    import json

    prepare(good, tmp_path)
    before = contents(tmp_path)
    description = json.loads((tmp_path / "train.json").read_text())
    for key in description:
        (tmp_path / "train.json").write_text(json.dumps({k: v for k, v in description.items() if k != key}))
        prepare(good, tmp_path)
        assert contents(tmp_path) == before, key


def test_splits_side_by_side(tmp_path):
    """Names that begin alike have nothing to do with one another."""
    for split in ("train", "train-other", "train-other-500"):
        write_split(tmp_path, split, {split: ("t", np.zeros((3, 2)), None)})
    for n, split in enumerate(("train", "train-other")):
        write_split(tmp_path, split, {f"{split}{n}": ("t", np.zeros((3, 2)), None)})
    assert splits_in(tmp_path) == ["train", "train-other", "train-other-500"]
    found = [Prepared(tmp_path, split).examples[0].id for split in splits_in(tmp_path)]
    assert found == ["train0", "train-other1", "train-other-500"]


def test_another_origin_is_noted_without_preparing(good, tmp_path):
    prepare(good, tmp_path, origin={"corpus": 1})
    shards = {path: state for path, state in states(tmp_path).items() if path.startswith("train-")}
    prepare(good, tmp_path, origin={"corpus": 2})
    assert Prepared(tmp_path, "train").origin == {"corpus": 2}
    prepare(good, tmp_path)  # who says nothing changes nothing
    assert Prepared(tmp_path, "train").origin == {"corpus": 2}
    assert shards == {path: state for path, state in states(tmp_path).items() if path.startswith("train-")}


def test_what_a_kill_has_left_goes_with_the_next_preparation(good, tmp_path):
    prepare(good, tmp_path)
    shutil.copytree(next(tmp_path.glob("train-*")), tmp_path / "train-0123456789ab")
    (tmp_path / ".train-0123456789ab").mkdir()
    (next(tmp_path.glob("train-*")) / ".tmp-1-cuts").touch()
    prepare(good, tmp_path, speeds=(1.0, 1.1))
    assert len(list(tmp_path.glob("train-*"))) == 1
    assert {path.name for path in tmp_path.rglob(".*")} == {".lock"}


def test_a_translation_is_a_second_text(tmp_path):
    path = write(tmp_path / "a.wav", noise(0.5))
    rows = [Row("u", "guten Tag", path, 0.5, translation="good day")]
    prepare(rows, tmp_path / "out")
    (example,) = Prepared(tmp_path / "out", "train").examples
    assert example.texts == {"transcript": "guten Tag", "translation": "good day"}
    for wrong, what in (("", "the translation is empty"), ("a\x07", "the translation has characters")):
        with pytest.raises(PreparationError, match=f"u: {what}"):
            prepare([dataclasses.replace(rows[0], translation=wrong)], tmp_path / "out")
    long = dataclasses.replace(rows[0], translation="abcdefghijklmnopqrstuvwxyz12")
    check = LengthCheck(TokenConfig(), 4, text="translation")
    with pytest.raises(PreparationError, match=r"u: the translation is too long: its 28 tokens"):
        prepare([long], tmp_path / "out", check=check)


def test_text_pairs(tmp_path):
    lines = [f"t{n}\tein Satz {n}\ta sentence {n}" for n in range(120)]
    manifest = tmp_path / "train.tsv"
    manifest.write_text("\n".join(["id\ttext\ttranslation", *lines]) + "\n")
    summary = prepare_split(RowSource(manifest), tmp_path / "out", "train", Storage("text"))
    assert (summary.examples, summary.num_frames, summary.duration_s, summary.words) == (120, 0, 0.0, 360)
    found = Prepared(tmp_path / "out", "train")
    assert len(found.shards) == 3
    assert found.examples[7].texts == {"source": "ein Satz 7", "translation": "a sentence 7"}
    assert found.feature_config is None
    assert found.feature_dim == 0
    with pytest.raises(ValueError, match="no features"):
        found.statistics()
    with pytest.raises(ValueError, match="no features"):
        found.features(0)
    manifest.write_text("\n".join(["id\ttext\ttranslation", *lines, "empty\tx\t"]) + "\n")
    with pytest.raises(PreparationError, match="empty: the translation is empty"):
        prepare_split(RowSource(manifest), tmp_path / "out", "train", Storage("text"))


def test_the_folder_is_made_and_its_path_may_be_text(good, tmp_path):
    prepare(good, str(tmp_path / "a" / "b"))
    assert len(Prepared(str(tmp_path / "a" / "b"), "train")) == 5


@pytest.mark.slow
def test_scripts_without_a_main_are_told(tmp_path):
    """Several jobs import the script again: its work would begin anew in every process."""
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import numpy as np\n"
        "from brctc.data import Storage, prepare_split\n"
        "from tests.data.splits import ArrayItem, ArraySource\n"
        "items = [ArrayItem(f'u{n}', {'transcript': 't'}, np.zeros((3, 2))) for n in range(60)]\n"
        "storage = Storage('features', None, 2, 0.01)\n"
        f"prepare_split(ArraySource(items), {str(tmp_path / 'out')!r}, 'x', storage, jobs=2)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert '`if __name__ == "__main__":`' in done.stderr
