"""When each word of a published corpus is said, from a forced aligner's file: latency is measured with it."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from brctc.data.alignments import Alignment, import_reference_times, read_ctm_alignment
from brctc.data.audio import AudioFile
from brctc.data.manifest import PreparationError, Problem, Row, WordTime
from brctc.data.recordings import Audio, RowSource
from brctc.data.reference_times import AlignmentError

_log = logging.getLogger("brctc.data")


class TimedRows(RowSource):
    """The rows of a source, with the times of their words by their ids."""

    def __init__(self, source: RowSource, times: Mapping[str, tuple[WordTime, ...]]) -> None:
        super().__init__((), source.name)
        self._source, self._times = source, times

    def digest(self) -> str:
        return hashlib.sha256(f"{self._source.digest()} {sorted(self._times.items())}".encode()).hexdigest()

    def size(self) -> int:
        return self._source.size()

    def items(self) -> Iterator[Row | Problem]:
        for item in self._source.items():
            times = self._times.get(item.id)
            yield item if times is None or isinstance(item, Problem) else replace(item, word_times=times)

    def _read(self, file: AudioFile, row: Row) -> Audio:
        return self._source._read(file, row)


def with_times(sources: Mapping[str, RowSource], ctm: Path, *, skip_bad: bool) -> dict[str, RowSource]:
    """The sources, those that are not trained on with the times of a CTM that calls utterances by their ids.

    What it lacks has no times; what is wrong in it is refused, or with `skip_bad` has no times.
    """
    if not ctm.is_file():
        raise ValueError(f"{ctm}: {'Is a directory' if ctm.is_dir() else 'No such file or directory'}")
    found = {
        name: source if name == "train" else _timed(source, ctm, skip_bad) for name, source in sources.items()
    }
    if not any(isinstance(source, TimedRows) for source in found.values()):
        raise ValueError(
            f"{ctm} has no utterance of {', '.join(name for name in sources if name != 'train')}"
        )
    return found


def _timed(source: RowSource, ctm: Path, skip_bad: bool) -> RowSource:
    rows = [item for item in source.items() if isinstance(item, Row)]
    alignment = read_ctm_alignment(ctm, rows)
    known = [row for row in rows if _knows(alignment, row)]
    if not known:
        return source
    found = import_reference_times(known, alignment)
    if found.failures and not skip_bad:
        raise PreparationError(str(ctm), found.failures)
    if without := len(rows) - len(known) + len(found.failures):
        _log.warning("%s: %d of %d utterances of %s have no times", ctm, without, len(rows), source.name)
    return TimedRows(source, {row.id: row.word_times for row in found.rows if row.word_times is not None})


def _knows(alignment: Alignment, row: Row) -> bool:
    try:
        return alignment(row) is not None
    except AlignmentError:
        return True  # what is wrong is told of later, with all the rest
