"""What tests of preparing share."""

from pathlib import Path

from brctc.data import (
    FeatureConfig,
    Row,
    RowSource,
    Storage,
    TokenConfig,
    WordTime,
    prepare_split,
)
from brctc.data.checks import LengthCheck
from tests.data.sounds import noise, write

CONFIG = FeatureConfig()
CHARACTERS = LengthCheck(TokenConfig(), 4)


def storage(speeds=(1.0,), kind="features") -> Storage:
    return Storage.of_audio(CONFIG, kind, speeds)


def prepare(rows, out, split="train", speeds=(1.0,), check=CHARACTERS, **options):
    return prepare_split(RowSource(rows), out, split, storage(speeds), check=check, **options)


def good_rows(folder: Path) -> list[Row]:
    """Five rows: two files of their own, one at 8 kHz, and two that share a file."""
    write(folder / "audio" / "a.wav", noise(1.0, 1))
    write(folder / "audio" / "b.flac", noise(0.75, 2))
    write(folder / "audio" / "c.wav", noise(0.6, 3, rate=8000), 8000)
    write(folder / "audio" / "shared.flac", noise(2, 4))
    shared = folder / "audio" / "shared.flac"
    times = (WordTime("two", 0.1, 0.3), WordTime("words", 0.3, 0.8))
    return [
        Row("a", "two words", folder / "audio" / "a.wav", 1.0, "s1", word_times=times),
        Row("late", "late", shared, 0.5, "s2", 20000, 8000),
        Row("b", "b", folder / "audio" / "b.flac", 0.75),
        Row("c", "c", folder / "audio" / "c.wav", 0.6),
        Row("early", "early", shared, 0.25, "s2", 100, 4000),
    ]
