"""From the items of a source to one shard: what each process of a preparation does."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from brctc.data.audio import change_speed, resample
from brctc.data.batch import Example
from brctc.data.checks import LabelCounts, LengthCheck
from brctc.data.features import extract_features, num_frames
from brctc.data.manifest import Problem
from brctc.data.shards import ShardWriter
from brctc.data.source import ExampleError, Loaded, Source, Storage, at_speed
from brctc.data.statistics import Statistics, add_up

MEASURED_OF_AUDIO = 50
"""Examples of a shard of audio whose features are made for their statistics alone."""


@dataclass(frozen=True)
class ShardJob:
    """What one shard is made of."""

    number: int
    items: Sequence[Any]
    source: Source
    storage: Storage
    check: LengthCheck | None
    skip_bad: bool
    folder: Path


@dataclass
class ShardReport:
    """What a shard holds, as plain data; `files` is empty if it was not written."""

    examples: int = 0
    num_frames: int = 0
    duration_s: float = 0.0
    words: int = 0
    speakers: list[str] = field(default_factory=list)
    resampled: list[int] = field(default_factory=list)
    longest: tuple[str, float] = ("", 0.0)
    """The longest example and its seconds."""
    problems: list[Problem] = field(default_factory=list)
    labels: LabelCounts = field(default_factory=LabelCounts)
    statistics: Statistics | None = None
    files: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        plain = dataclasses.asdict(self)
        return plain | {"statistics": None if self.statistics is None else self.statistics.to_json()}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "ShardReport":
        """What `to_json` gave."""
        found = ShardReport(**content)
        found.problems = [Problem(*problem) for problem in content["problems"]]
        found.labels = LabelCounts(**content["labels"])
        found.longest = (content["longest"][0], content["longest"][1])
        stored = content["statistics"]
        found.statistics = None if stored is None else Statistics.from_json(stored)
        return found


def make_shard(job: ShardJob) -> ShardReport:
    """Writes a shard, unless something is wrong with one of its items; then all problems are reported.

    With `skip_bad` bad items are left out, and reported too.
    """
    report = ShardReport()
    writer = ShardWriter(job.folder, job.number, job.storage)
    measured: list[Statistics] = []
    try:
        for item in job.items:
            try:
                made = _make(job, job.source.load(item), report)
            except Exception as error:  # whatever a damaged file does to a library: one never stops a corpus
                report.problems += _problems(item, error)
                continue
            if job.skip_bad or not report.problems:  # else only further problems are of interest
                for example, data in made.examples:  # errors here are of the disk, not of an example
                    _write(example, data, job.storage, writer, measured)
                    _count(example, made, job.storage, report)
        if report.problems and not job.skip_bad:
            writer.discard()
        else:
            report.files = writer.finish()
    except BaseException:
        writer.discard()
        raise
    report.statistics = add_up(measured)
    report.speakers.sort()
    report.duration_s = round(report.duration_s, 6)
    return report


def _problems(item: Any, error: Exception) -> list[Problem]:
    if isinstance(error, ExampleError):
        return [Problem(error.id or item.id, what) for what in error.problems]
    known = isinstance(error, ValueError) and str(error)
    return [Problem(item.id, str(error) if known else f"{type(error).__name__}: {error}")]


class _Made(NamedTuple):
    """What one item gives: an example at each speed if features are stored, or one."""

    loaded: Loaded
    tokens: Sequence[Any] | None
    """Of the text that is checked."""
    examples: list[tuple[Example, np.ndarray | None]]
    """With features (T, F), samples (T), or nothing."""


def _make(job: ShardJob, loaded: Loaded, report: ShardReport) -> _Made:
    storage, tokens = job.storage, None
    if job.check is not None and job.check.text in loaded.texts:
        tokens = job.check.encode(loaded.texts[job.check.text])
    made = _Made(loaded, tokens, [])
    if storage.kind == "text":
        if not {"source", "translation"} <= loaded.texts.keys():
            raise ExampleError(f"there is no text with its translation, but {', '.join(loaded.texts)}")
        made.examples.append((Example(loaded.id, loaded.texts, 0, 0.0), None))
    elif loaded.features is not None:
        example = _example(loaded, len(loaded.features), storage, 1.0)
        _check_features(storage, example.id, loaded.features)
        _check_example(job, example.id, tokens, example.num_frames)
        made.examples.append((example, loaded.features))
    else:
        _play(job, made, report)
    return made


def _play(job: ShardJob, made: _Made, report: ShardReport) -> None:
    """Makes examples of audio: of copies that do not fit, each is a problem of its own."""
    loaded, storage, config = made.loaded, job.storage, job.storage.features
    if loaded.samples is None or loaded.sample_rate is None or config is None:
        raise ExampleError("there is no audio, only text")
    samples = resample(loaded.samples, loaded.sample_rate, config.sample_rate)
    problems = []
    for speed in storage.speeds:
        played = change_speed(samples, speed)
        example = _example(loaded, num_frames(len(played), config), storage, speed)
        try:
            _check_example(job, example.id, made.tokens, example.num_frames)
        except ExampleError as error:
            problems.append(Problem(example.id, str(error)))
            continue
        if storage.kind == "features" and (job.skip_bad or not report.problems + problems):
            features = extract_features(played, config)
            _check_features(storage, example.id, features)
            made.examples.append((example, features))
    if storage.kind == "audio" and not problems:  # it is heard at all speeds, or at none
        example = _example(loaded, num_frames(len(samples), config), storage, 1.0)
        made.examples.append((example, samples))
    report.problems += problems


def _write(
    example: Example,
    data: np.ndarray | None,
    storage: Storage,
    writer: ShardWriter,
    measured: list[Statistics],
) -> None:
    config = storage.features
    if data is None:
        writer.add_texts(example)
    elif storage.kind == "features":
        writer.add_features(example, data)
        measured.append(Statistics.of(data.astype(np.float16)))
    else:
        assert config is not None, "audio has a feature config"
        writer.add_audio(example, data, config.sample_rate)
        if len(measured) < MEASURED_OF_AUDIO:
            measured.append(Statistics.of(extract_features(data, config)))


def _count(example: Example, made: _Made, storage: Storage, report: ShardReport) -> None:
    loaded, config = made.loaded, storage.features
    report.examples += 1
    report.num_frames += example.num_frames
    report.duration_s += example.duration_s
    report.words += len(next(iter(example.texts.values())).split())
    if made.tokens is not None:
        for _ in storage.speeds if storage.kind == "audio" else (1.0,):  # as often as it is heard
            report.labels.add(example.id, made.tokens)
    if example.duration_s > report.longest[1]:
        report.longest = (example.id, example.duration_s)
    if loaded.speaker is not None and loaded.speaker not in report.speakers:
        report.speakers.append(loaded.speaker)
    if config is not None and loaded.sample_rate not in (None, config.sample_rate, *report.resampled):
        report.resampled = sorted([*report.resampled, loaded.sample_rate])


def _example(loaded: Loaded, frames: int, storage: Storage, speed: float) -> Example:
    id, times = at_speed(loaded.id, loaded.word_times, speed)
    duration_s = round(frames * storage.frame_shift_s, 6)
    return Example(id, loaded.texts, frames, duration_s, loaded.speaker, times)


def _check_example(job: ShardJob, id: str, tokens: Sequence[Any] | None, frames: int) -> None:
    if frames == 0:
        raise ExampleError("the audio is too short for one frame", id=id)
    if job.check is not None and tokens is not None:
        problem = job.check.problem(tokens, frames)
        if problem is not None:
            raise ExampleError(problem, id=id)


def _check_features(storage: Storage, id: str, features: np.ndarray) -> None:
    if features.ndim != 2 or features.shape[1] != storage.feature_dim:
        raise ExampleError(f"features of shape {features.shape}, expected (T, {storage.feature_dim})", id=id)
    if not (np.abs(features) <= np.finfo(np.float16).max).all():
        raise ExampleError("a feature is not finite or beyond float16's range", id=id)
