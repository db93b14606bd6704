"""GRID: connected English commands such as "bin blue at f two now", with the corpus's own word times."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from brctc.data.corpora.base import CORPORA, AudioCorpusConfig, Size
from brctc.data.manifest import read_manifest
from brctc.data.recordings import RowSource
from brctc.data.source import Source


@CORPORA.register
class GridConfig(AudioCorpusConfig):
    """Sentences of GRID, divided at random; training gets what dev and test leave."""

    small_scale: ClassVar[bool] = True

    kind: Literal["grid"] = "grid"
    source: Path
    """A manifest, or the folder of one (manifest.tsv)."""
    dev_sentences: Size = 50
    test_sentences: Size = 150
    seed: Annotated[int, Field(ge=0)] = 0

    def sources(self) -> Mapping[str, Source]:
        rows = read_manifest(self.source / "manifest.tsv" if self.source.is_dir() else self.source)
        held_out = self.dev_sentences + self.test_sentences
        if len(rows) <= held_out:
            raise ValueError(f"{self.source} has {len(rows)} sentences, dev and test alone take {held_out}")
        order = [rows[i] for i in np.random.default_rng(self.seed).permutation(len(rows))]
        parts = {
            "train": order[held_out:],
            "dev": order[: self.dev_sentences],
            "test": order[self.dev_sentences : held_out],
        }
        return {split: RowSource(chosen, f"{self.source} ({split})") for split, chosen in parts.items()}
