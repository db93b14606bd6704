"""A prepared split, read back. Lists of examples are read when they are asked for, data when one is used.

    <split>.json         what there is, written last; it names the folder of the shards
    <split>-<key>/       shards in lhotse's Shar format (`brctc.data.shards`)

Names inside are relative, so the folder can be moved.
"""

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from brctc.config import describe_problems
from brctc.data.audio import change_speed, decode_audio, length_at_speed
from brctc.data.batch import Example
from brctc.data.description import FORMAT, Description
from brctc.data.features import FeatureConfig, complete_features, extract_features, num_frames
from brctc.data.prepare import check_split_name
from brctc.data.shards import (
    Place,
    check_file,
    data_file,
    example_of,
    place_of,
    read_array,
    read_data,
    read_lines,
)
from brctc.data.source import at_speed
from brctc.data.statistics import Statistics
from brctc.files import read_json

MOST_OPEN = 16
"""Tar files that stay open."""
MOST_NAMED = 10
"""Damages that one error names."""
DAMAGES = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError)
"""What reading a damaged list of examples may end in."""
T = TypeVar("T")


def splits_in(directory: str | Path) -> list[str]:
    """The names of all prepared splits of a folder."""
    folder = Path(directory)
    return sorted(path.stem for path in folder.glob("*.json") if any(folder.glob(f"{path.stem}-*/")))


def _with_samples(line: dict[str, Any]) -> tuple[Example, int]:
    return example_of(line), int(line["recording"]["num_samples"])


class Prepared:
    """A split of a corpus on disk. Opening it looks at every shard: one that is missing, truncated or
    foreign is refused by name."""

    def __init__(self, directory: str | Path, split: str) -> None:
        self.directory = Path(directory)
        self.split = split
        self._take(self._read_description())
        self._check_files()
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()

    def __len__(self) -> int:
        return self._size

    def __getstate__(self) -> dict[str, Any]:
        """For processes that load data: no open files, and no examples."""
        kept = {name: value for name, value in self.__dict__.items() if name not in ("examples", "_places")}
        return kept | {"_open": OrderedDict()}

    @property
    def feature_dim(self) -> int:
        """F of the features; 0 for texts."""
        return self.storage.feature_dim

    @property
    def frame_shift_s(self) -> float:
        """Seconds from one frame of the features to the next."""
        return self.storage.frame_shift_s

    @property
    def feature_config(self) -> FeatureConfig | None:
        """How features are made of audio; None if the source is not audio."""
        return self.storage.features

    def digest(self) -> str:
        """Changes with the examples, and not with where they are."""
        content = [file["sha256"] for shard in self.shards for file in shard["files"]]
        return hashlib.sha256("".join(content).encode()).hexdigest()

    def verify(self) -> None:
        """Reads every byte of every shard; a ValueError names all that are not what was written."""
        self._check_files(thorough=True)

    @cached_property
    def examples(self) -> list[Example]:
        """All examples, in memory: for development and test sets."""
        return list(self.iterate())

    def iterate(self) -> Iterator[Example]:
        """All examples, one after the other."""
        return (example for _, example in self._read_lists(example_of))

    def iterate_heard(self) -> Iterator[Example]:
        """All examples as training hears them: stored audio at each of its speeds."""
        if self.storage.kind != "audio":
            yield from self.iterate()
            return
        for _, (example, num_samples) in self._read_lists(_with_samples):
            for speed in self.storage.speeds:
                yield self._played(example, num_samples, speed)

    def features(self, index: int) -> np.ndarray:
        """(T, F) float32 of an example."""
        if self.storage.kind == "text":
            raise ValueError(f"{self.directory} ({self.split}) has texts alone, no features")
        return self.load(*self._places[index])

    def load(self, list_file: str, place: Place, speed: float = 1.0) -> np.ndarray:
        """(T, F) float32: the features at a place in the tar file beside a list, or made of its audio."""
        try:
            data = read_data(self._data_file(list_file), place)
            if self.storage.kind == "features":
                return read_array(data)
            config = self.storage.features
            assert config is not None, "audio has a feature config"
            return extract_features(change_speed(decode_audio(data, list_file), speed), config)
        except (OSError, ValueError) as error:
            where = f"the data of {list_file} at byte {place.offset}"
            raise ValueError(f"{where} cannot be read: {error}") from None

    def list_files(self) -> list[Path]:
        """The shards' lists of examples."""
        return [self.folder / shard["files"][0]["name"] for shard in self.shards]

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (F) of every bin over all frames, for global normalisation."""
        if self._statistics is None:
            raise ValueError(f"{self.directory} ({self.split}) has no features to measure")
        mean, deviation = self._statistics.mean, self._statistics.deviation
        return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(deviation.astype(np.float32))

    def _read_lists(self, take: Callable[[dict[str, Any]], T]) -> Iterator[tuple[str, T]]:
        """What is taken from each line of the lists of examples, with the list's name."""
        for path in self.list_files():
            try:
                for line in read_lines(path):
                    yield str(path), take(line)
            except DAMAGES as error:
                raise ValueError(f"{path} is damaged: {type(error).__name__} {error}") from None

    @cached_property
    def _places(self) -> list[tuple[str, Place]]:
        return list(self._read_lists(place_of))

    def _played(self, example: Example, num_samples: int, speed: float) -> Example:
        config = self.storage.features
        assert config is not None, "audio has a feature config"
        id, times = at_speed(example.id, example.word_times, speed)
        frames = num_frames(length_at_speed(num_samples, speed), config)
        duration_s = round(frames * self.frame_shift_s, 6)
        return replace(example, id=id, num_frames=frames, duration_s=duration_s, word_times=times)

    def _data_file(self, list_file: str) -> BinaryIO:
        """Open files, those used last: however many shards there are, few are open at a time."""
        file = self._open.pop(list_file, None) or data_file(list_file, self.storage.kind).open("rb")
        self._open[list_file] = file
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        return file

    def _read_description(self) -> Description:
        check_split_name(self.split)
        path = self.directory / f"{self.split}.json"
        if not path.exists():
            if any(self.directory.glob(f".{self.split}-*")):
                raise ValueError(f"{self.directory}: the split {self.split!r} is incomplete; prepare it anew")
            found = splits_in(self.directory)
            raise ValueError(f"{self.directory} has no prepared split {self.split!r}; found: {found}")
        info = read_json(path)
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise ValueError(f"{path} does not describe a prepared split of format {FORMAT}: prepare it anew")
        try:
            return Description.of(info)
        except ValidationError as error:
            found = "\n  ".join(describe_problems(error, Description, str(path)).splitlines()[:MOST_NAMED])
            raise ValueError(f"{path} is damaged: prepare it anew\n  {found}") from None
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}; prepare it anew") from None

    def _take(self, info: Description) -> None:
        self.storage = info.storage
        self.key = info.key
        """Changes with what the split was made from, and how."""
        self.folder = self.directory / info.folder
        self.source_digest, self.files_digest = info.source, info.files
        self.shards = [shard.model_dump() for shard in info.shards]
        self.origin = complete_features(info.origin)
        self.duration_s = info.duration_s
        self.longest = info.longest
        self._size = info.examples
        known = info.statistics
        self._statistics = None if known is None else Statistics.from_json(known.model_dump())

    def _check_files(self, thorough: bool = False) -> None:
        files = [file for shard in self.shards for file in shard["files"]]
        problems = filter(None, (check_file(self.folder, file, thorough=thorough) for file in files))
        found = list(problems) if thorough else [first] if (first := next(problems, None)) else []
        if found:
            advice = "prepare the split anew" if not thorough else f"remove {self.folder}, prepare it anew"
            raise ValueError("\n  ".join([*found[:MOST_NAMED], advice]))
