"""A split of a prepared corpus on disk: lhotse cuts, float16 feature shards and a short description.

    <split>.cuts.jsonl.gz        a lhotse CutSet: text, speaker, word times, and where the features are
    <split>.features-00.npy ...  the features of many utterances one after the other, memory-mapped
    <split>.json                 what there is; written last, so that a cut-off preparation is noticed

Relative paths inside, so the folder can be moved; the same input gives the same bytes.
"""

import contextlib
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from brctc.data.features import FeatureConfig
from brctc.data.manifest import Problem, WordTime
from brctc.files import file_digest

FORMAT = 1
SHARD_BYTES = 64 << 20
ORIGIN = "corpus.json"
"""What a recipe has made the splits of a folder from; without it, they were prepared by hand."""


@dataclass(frozen=True)
class Utterance:
    """What is known of an utterance besides its features; times count from its start."""

    id: str
    text: str
    num_frames: int
    duration_s: float
    speaker: str | None = None
    word_times: tuple[WordTime, ...] | None = None


@dataclass(frozen=True)
class Summary:
    """What a preparation made, and what it left out."""

    split: str
    utterances: int
    num_frames: int
    duration_s: float
    words: int
    speakers: int
    skipped: tuple[Problem, ...] = ()
    resampled: tuple[int, ...] = ()
    """Rates in Hz of audio that was resampled."""

    def __str__(self) -> str:
        text = (
            f"{self.split}: {self.utterances} utterances, {self.duration_s / 3600:.2f} h, "
            f"{self.num_frames} frames, {self.words} words"
        )
        if self.speakers:
            text += f", {self.speakers} speaker" + "s" * (self.speakers > 1)
        if self.resampled:
            text += f"; resampled from {', '.join(map(str, self.resampled))} Hz"
        if self.skipped:
            text += "\n  ".join([f"\n{len(self.skipped)} left out:", *map(str, self.skipped)])
        return text


def splits_in(directory: Path) -> list[str]:
    """The names of all prepared splits of a folder."""
    named = (path.stem for path in directory.glob("*.json"))
    return sorted(name for name in named if (directory / shard_name(name, 0)).exists())


def shard_name(split: str, shard: int) -> str:
    """The file of a shard."""
    return f"{split}.features-{shard:02d}.npy"


class PreparedWriter:
    """Writes a split. In a `with` block: what was there before is replaced at its end, or not at all.

    >>> with PreparedWriter(directory, "train", feature_dim=80, frame_shift_s=0.01) as writer:
    ...     writer.add("utt-1", "hello", features)
    """

    def __init__(
        self,
        directory: str | Path,
        split: str,
        *,
        feature_dim: int,
        frame_shift_s: float,
        feature_config: FeatureConfig | None = None,
    ) -> None:
        if not split or not split.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"split is {split!r}, expected a name of letters, digits, - and _")
        self.directory = Path(directory)
        self.split = split
        self.feature_dim = feature_dim
        self.frame_shift_s = frame_shift_s
        self.feature_config = feature_config
        self._entries: dict[str, tuple[Utterance, int, int]] = {}
        self._pending: list[np.ndarray] = []
        self._shard_frames = [0]
        self._shard_limit = max(1, SHARD_BYTES // (2 * feature_dim))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._discard_staged()  # of a killed preparation

    def add(
        self,
        id: str,
        text: str,
        features: np.ndarray,
        speaker: str | None = None,
        word_times: Sequence[WordTime] | None = None,
    ) -> None:
        """Adds an utterance with its features (T, F)."""
        if problem := self.problem_with(id, features):
            raise ValueError(f"{id}: {problem}")
        stored = features.astype(np.float16)
        if self._shard_frames[-1] and self._shard_frames[-1] + len(stored) > self._shard_limit:
            self._close_shard()
            self._shard_frames.append(0)
        utterance = Utterance(
            id,
            text,
            len(stored),
            round(len(stored) * self.frame_shift_s, 6),
            speaker,
            None if word_times is None else tuple(word_times),
        )
        self._entries[id] = (utterance, len(self._shard_frames) - 1, self._shard_frames[-1])
        self._pending.append(stored)
        self._shard_frames[-1] += len(stored)

    def problem_with(self, id: str, features: np.ndarray) -> str | None:
        """Why `add` would refuse this."""
        if id in self._entries:
            return "the id was used before"
        if features.ndim != 2 or features.shape[1] != self.feature_dim or len(features) == 0:
            return f"features of shape {features.shape}, expected (T, {self.feature_dim})"
        if not (np.abs(features) <= np.finfo(np.float16).max).all():
            return "a feature is not finite or beyond float16's range"
        return None

    def __enter__(self) -> "PreparedWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._discard_staged()

    def summary(self) -> Summary:
        """What was added so far."""
        utterances = [utterance for utterance, _, _ in self._entries.values()]
        return Summary(
            self.split,
            len(utterances),
            sum(u.num_frames for u in utterances),
            round(sum(u.duration_s for u in utterances), 6),
            sum(len(u.text.split()) for u in utterances),
            len({u.speaker for u in utterances if u.speaker is not None}),
        )

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[BinaryIO]:
        """A file that gets its name when the split is complete."""
        with (self.directory / f"{name}.new").open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def _discard_staged(self) -> None:
        for path in self.directory.glob(f"{self.split}.*.new"):
            path.unlink()

    def _close_shard(self) -> None:
        with self._stage(shard_name(self.split, len(self._shard_frames) - 1)) as file:
            # not np.save: it loses its last bytes on a full disk without a word
            frames = np.concatenate(self._pending)
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(frames))
            file.write(frames.data)
        self._pending.clear()

    def _write_cuts(self) -> str:
        name = f"{self.split}.cuts.jsonl.gz"
        with self._stage(name) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as lines:
            for utterance, shard, first_frame in self._entries.values():
                cut = self._cut(utterance, shard, first_frame)
                lines.write(json.dumps(cut, ensure_ascii=False).encode() + b"\n")
        return name

    def _write_description(self) -> str:
        name = f"{self.split}.json"
        info = {
            "format": FORMAT,
            "feature_dim": self.feature_dim,
            "frame_shift_s": self.frame_shift_s,
            "utterances": len(self._entries),
            "shard_frames": self._shard_frames,
            "features": None if self.feature_config is None else self.feature_config.model_dump(),
        }
        with self._stage(name) as file:
            file.write(json.dumps(info, indent=2).encode() + b"\n")
        return name

    def _finish(self) -> None:
        if not self._entries:
            raise ValueError(f"the split {self.split!r} of {self.directory} would be empty")
        self._close_shard()
        shards = [shard_name(self.split, shard) for shard in range(len(self._shard_frames))]
        cuts, description = self._write_cuts(), self._write_description()
        # all is written; without its description there is no split, so that comes last
        (self.directory / description).unlink(missing_ok=True)
        for old in self.directory.glob(f"{self.split}.features-*.npy"):
            old.unlink()
        for name in (*shards, cuts, description):
            (self.directory / f"{name}.new").replace(self.directory / name)

    def _cut(self, utterance: Utterance, shard: int, first_frame: int) -> dict[str, Any]:
        """A lhotse cut out of its shard: `load_features` works from within the folder."""
        from lhotse import Features, MonoCut, SupervisionSegment

        frames = self._shard_frames[shard]
        config = self.feature_config
        name = shard_name(self.split, shard)
        features = Features(
            type="columns" if config is None else "kaldi-fbank",
            num_frames=frames,
            num_features=self.feature_dim,
            frame_shift=self.frame_shift_s,
            sampling_rate=round(1 / self.frame_shift_s) if config is None else config.sample_rate,
            start=0,
            duration=round(frames * self.frame_shift_s, 6),
            storage_type="numpy_files",
            storage_path=".",
            storage_key=name,
            recording_id=name,
            channels=0,
        )
        supervision = SupervisionSegment(
            utterance.id, name, 0, utterance.duration_s, text=utterance.text, speaker=utterance.speaker
        )
        custom = {
            "shard": name,
            "first_frame": first_frame,
            "num_frames": utterance.num_frames,
            "word_times": utterance.word_times,
        }
        start = round(first_frame * self.frame_shift_s, 6)
        return MonoCut(
            utterance.id,
            start,
            utterance.duration_s,
            channel=0,
            supervisions=[supervision],
            features=features,
            custom=custom,
        ).to_dict()


class Prepared:
    """A prepared split, read back; features stay on disk until they are asked for."""

    def __init__(self, directory: str | Path, split: str) -> None:
        self.directory = Path(directory)
        self.split = split
        info = self._description()
        self.feature_dim: int = info["feature_dim"]
        self.frame_shift_s: float = info["frame_shift_s"]
        self.feature_config = None if info["features"] is None else FeatureConfig(**info["features"])
        self._shards = [self._open_shard(i, frames) for i, frames in enumerate(info["shard_frames"])]
        self.utterances: list[Utterance] = []
        self._places: list[tuple[int, int]] = []
        self._read_cuts(info["utterances"])

    def __len__(self) -> int:
        return len(self.utterances)

    def digest(self) -> str:
        """Changes with the utterances, and not with where they are."""
        return file_digest(self.directory / f"{self.split}.cuts.jsonl.gz")

    def features(self, index: int) -> np.ndarray:
        """(T, F) float32 of an utterance."""
        shard, first = self._places[index]
        return self._shards[shard][first : first + self.utterances[index].num_frames].astype(np.float32)

    def shards(self) -> Iterator[np.ndarray]:
        """All features, (frames, F) float16 at a time."""
        yield from self._shards

    def _description(self) -> dict[str, Any]:
        path = self.directory / f"{self.split}.json"
        if not path.exists():
            if any(self.directory.glob(f"{self.split}.*")):
                raise ValueError(f"{self.directory}: the split {self.split!r} is incomplete; prepare it anew")
            found = splits_in(self.directory)
            raise ValueError(f"{self.directory} has no prepared split {self.split!r}; found: {found}")
        try:
            info = json.loads(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise ValueError(f"{path} does not describe a prepared split of format {FORMAT}")
        return info

    def _open_shard(self, shard: int, frames: int) -> np.ndarray:
        path = self.directory / shard_name(self.split, shard)
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is missing or damaged: {error}") from None
        if array.shape != (frames, self.feature_dim) or array.dtype != np.float16:
            raise ValueError(
                f"{path} holds {array.dtype} {array.shape}, expected float16 {(frames, self.feature_dim)}"
            )
        return array

    def _read_cuts(self, expected: int) -> None:
        path = self.directory / f"{self.split}.cuts.jsonl.gz"
        try:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    self._read_cut(json.loads(line))
        except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
            raise ValueError(f"{path} is missing or damaged: {error}") from None
        if len(self.utterances) != expected:
            raise ValueError(f"{path} holds {len(self.utterances)} cuts, expected {expected}")

    def _read_cut(self, cut: dict[str, Any]) -> None:
        # lhotse reads these too (a test does); plain JSON spares the seconds that importing it takes
        custom, (supervision,) = cut["custom"], cut["supervisions"]
        times = custom.get("word_times")
        self.utterances.append(
            Utterance(
                cut["id"],
                supervision["text"],
                custom["num_frames"],
                cut["duration"],
                supervision.get("speaker"),
                None if times is None else tuple(WordTime(*time) for time in times),
            )
        )
        shard = int(custom["shard"].removesuffix(".npy").rpartition("-")[2])
        self._places.append((shard, custom["first_frame"]))


def feature_statistics(prepared: Prepared) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (F) of every bin over all frames, for global normalisation."""
    count, total, squares = 0, np.zeros(prepared.feature_dim), np.zeros(prepared.feature_dim)
    # around a first guess, so that squares of large means cancel nothing
    guess = np.asarray(next(prepared.shards())[:1000], np.float64).mean(0)
    for shard in prepared.shards():
        for first in range(0, len(shard), 10000):
            frames = shard[first : first + 10000].astype(np.float64) - guess
            count += len(frames)
            total += frames.sum(0)
            squares += np.square(frames).sum(0)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0))
    deviation[deviation < 1e-5] = 1  # a bin that never changes
    return torch.from_numpy((mean + guess).astype(np.float32)), torch.from_numpy(deviation.astype(np.float32))
