"""Sentences of Tatoeba with their translations: train.tsv, dev.tsv, and test.tsv if it is there.

The files have the columns id, text and translation; which languages these are, only whoever made them knows.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from brctc.data.corpora.base import CORPORA
from brctc.data.corpora.pairs import PairsConfig, PairSource, find_pairs


@CORPORA.register
class TatoebaConfig(PairsConfig):
    """Sentences of Tatoeba, in TSV files with the columns id, text and translation."""

    title: ClassVar[str] = "Tatoeba"
    small_scale: ClassVar[bool] = True

    kind: Literal["tatoeba"] = "tatoeba"

    def sources(self) -> Mapping[str, PairSource]:
        sources = {}
        for split in ("train", "dev", "test"):
            source = find_pairs(self.source, split, None, self.reverse)
            if source is not None:
                sources[split] = source
            elif split != "test":
                raise ValueError(f"{self.source} has no {split}.tsv")
        return sources
