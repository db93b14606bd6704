"""What published corpora of speech have in common: rows from lhotse's recipes, or read from their files."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from brctc.data.audio import AudioFile
from brctc.data.checks import DURATION_TOLERANCE_S
from brctc.data.corpora.base import AudioCorpusConfig
from brctc.data.corpora.timed import with_times
from brctc.data.manifest import Problem, Row
from brctc.data.recordings import Audio, RowSource, read_row

_log = logging.getLogger("brctc.data")


class PublishedConfig(AudioCorpusConfig):
    """A corpus of recordings as it is published."""

    source: Path
    """Its folder."""
    skip_bad: bool = False
    """Leave utterances out that cannot be used, instead of stopping."""
    word_times: Path | None = None
    """A CTM, as forced aligners write, that calls utterances by their ids: when words are said, in all splits
    but `train`. Latency is measured with it."""

    def sources(self) -> Mapping[str, RowSource]:
        sources = self.published_sources()
        if self.word_times is None:
            return sources
        return with_times(sources, self.word_times, skip_bad=self.skip_bad)

    def published_sources(self) -> Mapping[str, RowSource]:
        """The source of each split, without times."""
        raise NotImplementedError


def rows_of(recordings: Any, supervisions: Iterable[Any]) -> list[Row]:
    """A RecordingSet and a SupervisionSet of lhotse's as rows."""
    by_id = {recording.id: recording for recording in recordings}
    rows = []
    for supervision in supervisions:
        recording = by_id[supervision.recording_id]
        (source,) = recording.sources
        if source.type != "file":
            raise ValueError(f"{supervision.id}: its audio is a {source.type}, expected a file")
        rate = recording.sampling_rate
        whole = supervision.start == 0 and abs(supervision.duration - recording.duration) < 1 / rate
        rows.append(
            Row(
                supervision.id,
                " ".join((supervision.text or "").split()),
                Path(source.source),
                supervision.duration,
                supervision.speaker,
                None if whole else round(supervision.start * rate),
                None if whole else round(supervision.duration * rate),
            )
        )
    return rows


@dataclass(frozen=True)
class Segment(Row):
    """A row that is a part of a file, in seconds: the file's rate is not known before it is opened."""

    start_s: float = 0.0

    def in_samples(self, file: AudioFile) -> Row:
        """Where it is in the file; an end that is rounded to shortly after the file's is the file's."""
        assert self.duration is not None, "a segment has a duration"
        start, stop = (round(s * file.sample_rate) for s in (self.start_s, self.start_s + self.duration))
        if start < file.num_samples < stop <= file.num_samples + DURATION_TOLERANCE_S * file.sample_rate:
            stop = file.num_samples
        return replace(self, start_sample=start, num_samples=stop - start)


class LeftOut(NamedTuple):
    """An utterance that a corpus lists and nobody can use; they are counted and told of."""

    id: str
    why: str
    """Such as `without text`."""


class StreamedRows(RowSource):
    """Rows that are read anew whenever they are asked for, and need not fit into memory; how is up to a
    subclass. Their digest does not depend on where the corpus's folder is."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__((), name)
        self.folder = folder
        self._told = False
        self._known: tuple[str, int] | None = None

    def read(self) -> Iterator[Row | Problem | LeftOut]:
        """Every utterance that the corpus lists."""
        raise NotImplementedError

    def items(self) -> Iterator[Row | Problem]:
        left_out: dict[str, list[Any]] = {}
        for item in self.read():
            if isinstance(item, LeftOut):
                left_out.setdefault(item.why, [item.id, 0])[1] += 1
            else:
                yield item
        if left_out and not self._told:
            self._told = True
            counts = (f"{count} {why} ({first} first)" for why, (first, count) in left_out.items())
            _log.warning("%s: left out: %s", self.name, ", ".join(counts))

    def digest(self) -> str:
        return self._look()[0]

    def size(self) -> int:
        return self._look()[1]

    def _look(self) -> tuple[str, int]:
        """Digest and size, found in one go."""
        if self._known is None:
            digest, size = hashlib.sha256(), 0
            for item in self.items():
                size += 1
                digest.update(repr(_content(item, str(self.folder))).encode())
            self._known = digest.hexdigest(), size
        return self._known

    def _read(self, file: AudioFile, row: Row) -> Audio:
        return read_row(file, row.in_samples(file) if isinstance(row, Segment) else row)


def _content(item: Row | Problem, folder: str) -> tuple[Any, ...]:
    if isinstance(item, Problem):
        return tuple(item)
    start = item.start_s if isinstance(item, Segment) else None
    path = str(item.path).removeprefix(folder)
    return item.id, item.text, item.translation, item.speaker, path, start, item.duration


def none_empty(sources: Mapping[str, StreamedRows]) -> Mapping[str, StreamedRows]:
    """Refuses a split without an utterance before another one is prepared for hours."""
    for source in sources.values():
        if source.size() == 0:
            raise ValueError(f"{source.name} has no utterance that can be used")
    return sources
