"""What is written of a prepared split beside its shards, as it is read again: checked, since files get
damaged."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, model_validator

from brctc.data.shards import shard_names
from brctc.data.source import Storage, check_speeds
from brctc.files import json_digest

FORMAT = 2

Count = Annotated[int, Field(ge=0)]


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """With a digest of itself, by which a changed number is noticed that could also be right."""
    return content | {"digest": json_digest(content)}


def unseal(content: Any) -> dict[str, Any]:
    """What was sealed; a ValueError if it is not that any more."""
    if not isinstance(content, dict) or "digest" not in content:
        raise ValueError("it has no digest")
    plain = {key: value for key, value in content.items() if key != "digest"}
    if json_digest(plain) != content["digest"]:
        raise ValueError("its content is not what was written")
    return plain


class FileRecord(BaseModel):
    """What a file of a shard was when it was written."""

    name: str
    bytes: Count
    head: str
    sha256: str


class ShardRecord(BaseModel):
    """The files of a shard, its list of examples first."""

    examples: Count
    files: Annotated[list[FileRecord], Field(min_length=1)]


class StatisticsRecord(BaseModel):
    """`brctc.data.statistics.Statistics`"""

    frames: Annotated[int, Field(ge=1)]
    mean: list[FiniteFloat]
    squares: list[Annotated[FiniteFloat, Field(ge=0)]]


class Description(BaseModel):
    """The content of `<split>.json`."""

    format: Literal[2]
    key: str
    folder: str
    source: str
    files: str | None = None
    """Of the files behind the source; the first splits of this format say nothing of them."""
    storage: Storage
    examples: Annotated[int, Field(ge=1)]
    num_frames: Count
    duration_s: Annotated[FiniteFloat, Field(ge=0)]
    words: Count
    speakers: Count
    resampled: list[int]
    longest: tuple[str, Annotated[FiniteFloat, Field(ge=0)]]
    statistics: StatisticsRecord | None
    skipped: list[tuple[str, str]]
    origin: dict[str, Any] | None
    shards: Annotated[list[ShardRecord], Field(min_length=1)]
    digest: str | None = None
    """Of the rest; the first splits of this format have none."""

    @staticmethod
    def of(content: Any) -> "Description":
        """Checked; a ValueError says what is wrong with it."""
        found = Description.model_validate(content)
        if found.digest is not None:
            unseal(content)
        return found

    @model_validator(mode="after")
    def _belongs_together(self) -> "Description":
        storage = self.storage
        if self.folder in ("", ".", "..") or Path(self.folder).name != self.folder:
            raise ValueError("its folder is not beside it")
        if sum(shard.examples for shard in self.shards) != self.examples:
            raise ValueError(f"{self.examples} examples are not those of its shards")
        check_speeds(storage.speeds)
        shaped = storage.feature_dim > 0 and 0 < storage.frame_shift_s < np.inf
        if not storage.speeds or (storage.kind != "text" and not shaped):
            raise ValueError("its features have no shape, or no speed")
        if storage.kind == "audio" and storage.features is None:
            raise ValueError("how features are made of its audio is not said")
        for shard in self.shards:
            if len(shard.files) != len(shard_names(storage.kind, 0)):
                raise ValueError(f"a shard has {len(shard.files)} files")
        known = self.statistics
        if known is not None and {len(known.mean), len(known.squares)} != {storage.feature_dim}:
            raise ValueError("its statistics are not of its features")
        return self
