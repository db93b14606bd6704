"""LibriSpeech as it is published, through lhotse's own recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from brctc.data.corpora.base import CORPORA, AudioCorpusConfig, TrainSize
from brctc.data.corpora.published import rows_of
from brctc.data.recordings import RowSource
from brctc.data.source import Source

TRAINING = ("train-clean-100", "train-clean-360", "train-other-500", "train-clean-5")
SIZES = {
    "train-clean-100": (28_539, 100.6),
    "train-clean-360": (104_014, 363.6),
    "train-other-500": (148_688, 496.7),
}
"""Utterances and hours; train-clean-5 is an excerpt of the first."""
OTHERS = ("dev-clean", "dev-other", "test-clean", "test-other", "dev-clean-2")


@CORPORA.register
class LibriSpeechConfig(AudioCorpusConfig):
    """LibriSpeech, or its excerpt mini LibriSpeech; all parts that are there are prepared."""

    kind: Literal["librispeech"] = "librispeech"
    source: Path
    """The folder that holds train-clean-100, dev-clean and so on."""
    train_parts: Annotated[tuple[str, ...], Field(min_length=1)] = TRAINING
    """What is trained on, as far as it is there."""
    dev_parts: Annotated[tuple[str, ...], Field(min_length=1)] = ("dev-clean", "dev-clean-2")
    """What training is watched with; the other parts are test sets by their own names."""

    def published_size(self) -> TrainSize | None:
        parts = [SIZES[part] for part in self.train_parts if part in SIZES]
        return TrainSize(sum(n for n, _ in parts), sum(hours for _, hours in parts)) if parts else None

    def split_names(self) -> Sequence[str]:
        return list(self._splits())

    def _splits(self) -> dict[str, list[str]]:
        train, dev = self._present(self.train_parts), self._present(self.dev_parts)
        if not train or not dev:
            wanted = self.dev_parts if train else self.train_parts
            raise ValueError(f"{self.source} has none of {', '.join(wanted)}")
        tests = [part for part in self._present(OTHERS) if part not in self.dev_parts]
        return {"train": train, "dev": dev, **{part: [part] for part in tests}}

    def sources(self) -> Mapping[str, Source]:
        splits = self._splits()
        found = _read(self.source, [part for parts in splits.values() for part in parts])
        return {
            split: RowSource([row for part in parts for row in found[part]], f"{self.source} ({split})")
            for split, parts in splits.items()
        }

    def _present(self, parts: Sequence[str]) -> list[str]:
        return [part for part in parts if (self.source / part).is_dir()]


def _read(source: Path, parts: Sequence[str]) -> dict[str, list]:
    from lhotse.audio.utils import AudioLoadingError
    from lhotse.recipes import prepare_librispeech

    try:
        manifests = prepare_librispeech(source, dataset_parts=list(parts))
    except AudioLoadingError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    # in an order that is the same wherever the files are
    return {part: sorted(rows_of(**manifests[part]), key=lambda row: row.id) for part in parts}
