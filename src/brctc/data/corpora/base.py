"""What a corpus is to the rest: named splits, each with a source of examples, and how they are stored."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, SerializeAsAny

from brctc.config import Kind, Registry
from brctc.data.features import FeatureConfig
from brctc.data.source import CheckedSource, Source, Storage

SPEEDS = (0.9, 1.0, 1.1)
"""Speed perturbation of the paper (table 3), of training splits."""

Speed = Annotated[float, Field(ge=0.5, le=2)]
Size = Annotated[int, Field(ge=1)]

CORPORA: Registry["CorpusConfig"] = Registry("corpus")
"""Every corpus registers itself: a new one is a file with a `CorpusConfig`."""


class TrainSize(NamedTuple):
    """How large a published training split is, at one speed: about what the paper's table 2 says."""

    examples: int
    hours: float = 0.0
    """Of speech."""
    characters: int | None = None
    """How many there are, where they are tokens."""


class CorpusConfig(Kind):
    """Where the data come from and where they lie prepared; paths as seen from where the command runs."""

    registry: ClassVar[Registry[Any]] = CORPORA
    small_scale: ClassVar[bool] = False
    """Whether results on it say nothing about large systems; reports then say so."""
    title: ClassVar[str] = ""
    """What results call it; its kind by default."""
    input: ClassVar[Literal["audio", "columns", "text"]] = "audio"
    """What its examples are made of: recordings, ready features, or text alone."""
    frame_shift_s: ClassVar[float] = 0.0
    """Seconds that a column counts as; audio has its features' own."""

    kind: str
    prepared: str
    """The directory of the prepared splits; made when it is not there."""

    def split_names(self) -> Sequence[str]:
        """What it is divided into: `train`, `dev`, and any number of test sets."""
        return ("train", "dev", "test")

    def test_names(self) -> list[str]:
        """Its test sets: all but what is trained and watched with."""
        return [split for split in self.split_names() if split not in ("train", "dev")]

    def sources(self) -> Mapping[str, Source]:
        """The source of each split, by the split's name."""
        raise NotImplementedError

    def published_size(self) -> TrainSize | None:
        """Of the training split, for who plans before the data are there; None if nobody knows."""
        return None

    def current_sources(self) -> Mapping[str, CheckedSource]:
        """The sources that are there and quickly read, by split: when a training begins, it is noticed if one
        has changed since it was prepared."""
        return {}

    def storage(self, split: str, features: FeatureConfig | None) -> Storage:
        """What is stored of a split's examples."""
        raise NotImplementedError


class AudioCorpusConfig(CorpusConfig):
    """A corpus of recordings."""

    speeds: tuple[Speed, ...] = SPEEDS
    """At which each training utterance is heard."""
    store: Literal["features", "audio"] = "features"
    """Features at all speeds, which costs disk and spares time; or audio once, whose speeds and features are
    made when it is read."""

    def storage(self, split: str, features: FeatureConfig | None) -> Storage:
        speeds = self.speeds if split == "train" else (1.0,)
        return Storage.of_audio(features or FeatureConfig(), self.store, speeds)


AnyCorpus = Annotated[SerializeAsAny[CorpusConfig], BeforeValidator(CORPORA.parse)]
