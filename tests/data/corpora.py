"""What tests of corpora share."""

from pathlib import Path

from brctc.data import (
    CORPORA,
    prepare_corpus,
)

SPLITS = ("train", "dev", "test")


def corpus_of(kind: str, prepared: Path, **options):
    return CORPORA.parse({"kind": kind, "prepared": str(prepared), **options})


def prepare(kind: str, prepared: Path, *, features=None, jobs=1, progress=None, **options):
    return prepare_corpus(corpus_of(kind, prepared, **options), features, jobs=jobs, progress=progress)


def text_of(example) -> str:
    return example.texts["transcript"]


DIGITS = {
    "train_strings": 30,
    "dev_strings": 6,
    "test_strings": 8,
    "dev_speakers": 1,
    "test_speakers": 2,
    "max_digits": 5,
}
