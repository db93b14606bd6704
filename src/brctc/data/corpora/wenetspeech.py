"""WenetSpeech as it is published: WenetSpeech.json, and hours of speech in each of its opus files.

lhotse's recipe has the whole JSON and all segments, 14 million, in memory at once. Here both are read piece
by piece, as often as needed.

libsndfile seeks in opus to the sample: a segment costs what its own seconds cost to decode, and about 1 ms.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from brctc.data.corpora.base import CORPORA, TrainSize
from brctc.data.corpora.mandarin import mandarin
from brctc.data.corpora.published import LeftOut, PublishedConfig, Segment, StreamedRows, none_empty
from brctc.data.json_list import iterate_json_list
from brctc.data.manifest import Problem, id_problem

HELD_OUT = {"dev": "DEV", "test_net": "TEST_NET", "test_meeting": "TEST_MEETING"}


@CORPORA.register
class WenetSpeechConfig(PublishedConfig):
    """WenetSpeech, up to 10,000 hours of Mandarin from the internet, with its three other sets."""

    title: ClassVar[str] = "WenetSpeech"

    kind: Literal["wenetspeech"] = "wenetspeech"
    source: Path
    """The folder that holds WenetSpeech.json and audio."""
    subset: Literal["L", "M", "S"] = "L"
    """What is trained on: 10,000, 1,000 or 100 hours."""

    def published_size(self) -> TrainSize:
        share = {"L": 1.0, "M": 0.1, "S": 0.01}[self.subset]
        return TrainSize(round(14_000_000 * share), 10_000 * share, 6267)

    def split_names(self) -> Sequence[str]:
        return ("train", *HELD_OUT)

    def published_sources(self) -> Mapping[str, StreamedRows]:
        path = self.source / "WenetSpeech.json"
        if not path.is_file():
            raise ValueError(f"{path}: No such file or directory")
        subsets = {"train": self.subset, **HELD_OUT}
        return none_empty({split: Segments(path, subset) for split, subset in subsets.items()})


class Segments(StreamedRows):
    """The segments of a subset, in the order of the JSON, which is by file."""

    def __init__(self, path: Path, subset: str) -> None:
        super().__init__(path.parent, f"{path} ({subset})")
        self.path, self.subset = path, subset

    def read(self) -> Iterator[Segment | Problem | LeftOut]:
        for number, audio in enumerate(iterate_json_list(self.path, "audios")):
            try:
                path, segments = self.folder / audio["path"], iter(audio["segments"])
            except (KeyError, TypeError):
                yield Problem(f"audio {number}", "expected an object with path and segments")
                continue
            for place, segment in enumerate(segments):
                try:
                    if self.subset in segment["subsets"]:
                        yield _segment(segment, path)
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    what = str(error) if isinstance(error, ValueError) else _EXPECTED
                    yield Problem(f"segment {place} of {audio['path']}", what)


_EXPECTED = "expected an object with sid, text, subsets, and begin_time and end_time in seconds"


def _segment(segment: Mapping[str, Any], path: Path) -> Segment | LeftOut:
    id, text = segment["sid"], mandarin(segment["text"])
    start, end = segment["begin_time"], segment["end_time"]
    if problem := id_problem(id):
        raise ValueError(problem)
    if not 0 <= start < end < float("inf"):
        raise ValueError(f"{id} is from {start} to {end} s")
    if not text:
        return LeftOut(id, "without text")
    return Segment(id, text, path, round(end - start, 6), start_s=start)
