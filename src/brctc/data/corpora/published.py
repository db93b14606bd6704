"""Published corpora, read by lhotse's recipes, as rows."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from brctc.data.manifest import Row


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
