"""Multi30k (task 1): descriptions of photographs in German and in English.

Either a TSV file for each split (train.tsv, val.tsv, test_2016_flickr.tsv, ...; German is `text`), or the
files as they are published: train.de and train.en, val.de and val.en, and so on, a sentence a line.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from brctc.data.corpora.base import CORPORA
from brctc.data.corpora.pairs import PairsConfig, PairSource, find_pairs

LANGUAGES = ("de", "en")
STEMS = {"train": "train", "dev": "val"}


@CORPORA.register
class Multi30kConfig(PairsConfig):
    """Multi30k, from German into English; every test set that is there, by its own name."""

    title: ClassVar[str] = "Multi30k"
    small_scale: ClassVar[bool] = True

    kind: Literal["multi30k"] = "multi30k"

    def sources(self) -> Mapping[str, PairSource]:
        suffixes = {".tsv", *(f".{language}" for language in LANGUAGES)}
        found = [path for path in self.source.glob("test*") if path.suffix in suffixes]
        stems = STEMS | {stem: stem for stem in sorted({path.stem for path in found})}
        sources = {}
        for split, stem in stems.items():
            source = find_pairs(self.source, stem, LANGUAGES, self.reverse)
            if source is None:
                raise ValueError(f"{self.source} has neither {stem}.tsv nor {stem}.de and {stem}.en")
            sources[split] = source
        return sources
