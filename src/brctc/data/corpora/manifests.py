"""Your own corpus: a manifest for each split (docs/own-data.md)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from brctc.config import Config, KeyedError
from brctc.data.corpora.base import CORPORA, AudioCorpusConfig, CorpusConfig
from brctc.data.features import FeatureConfig
from brctc.data.recordings import RowSource
from brctc.data.source import Source, Storage


class Manifests(Config):
    """A list of examples for each split."""

    manifests: Annotated[dict[str, str], Field(min_length=1)]
    """A TSV file for each split: train, dev, and any number of test sets."""
    skip_bad: bool = False
    """Leave rows out that cannot be used, instead of stopping."""

    @model_validator(mode="after")
    def _enough_splits(self) -> "Manifests":
        if not {"train", "dev"} <= self.manifests.keys():
            raise KeyedError("manifests", "needs at least train and dev")
        return self

    def split_names(self) -> Sequence[str]:
        return list(self.manifests)

    def current_sources(self) -> Mapping[str, RowSource]:
        return {split: RowSource(path) for split, path in self.manifests.items() if Path(path).is_file()}

    def sources(self) -> Mapping[str, Source]:
        """The manifests themselves, which need not fit into memory."""
        for manifest in self.manifests.values():
            if not Path(manifest).is_file():
                problem = "Is a directory" if Path(manifest).is_dir() else "No such file or directory"
                raise ValueError(f"{manifest}: {problem}")
        return {split: RowSource(manifest) for split, manifest in self.manifests.items()}


@CORPORA.register
class ManifestsConfig(Manifests, AudioCorpusConfig):
    """Speech with its texts, listed in TSV files."""

    kind: Literal["manifests"] = "manifests"


@CORPORA.register
class TextPairsConfig(Manifests, CorpusConfig):
    """Texts with their translations, listed in TSV files with the columns id, text and translation."""

    input: ClassVar[Literal["audio", "columns", "text"]] = "text"

    kind: Literal["text-pairs"] = "text-pairs"

    def storage(self, split: str, features: FeatureConfig | None) -> Storage:
        return Storage("text")
