"""How long searches take on a split: example by example, or in batches."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from brctc.data import Prepared
from brctc.data.batch import source_length
from brctc.decode.pool import RecognizerPool
from brctc.decode.sources import prepared_source
from brctc.evaluate.decoding import Progress
from brctc.evaluate.real_time import RealTime, measure_rtf


class Timed(Protocol):
    """A system under its name."""

    name: str
    pool: RecognizerPool


Searches = Sequence[tuple[Timed, dict[str, Any]]]
"""Systems with the options of `Recognizer.recognize`."""


class Clock:
    """Times searches on a split, all of them in one run, taking turns."""

    def __init__(self, prepared: Prepared, repeats: int, tell: Progress) -> None:
        self.prepared, self.repeats, self.tell = prepared, repeats, tell

    def time_alone(self, searches: Searches, indices: Sequence[int], what: str) -> list[RealTime]:
        """Of each search on these examples of the split, one by one."""
        return self._time(searches, [[i] for i in indices], what)

    def time_batches(self, searches: Searches, size: int) -> Sequence[RealTime | None]:
        """Of each search on two batches of so many examples, short ones and long ones, as they are when a
        whole split is decoded by length; None for all if a batch is one."""
        if size == 1:
            return [None] * len(searches)
        count = len(self.prepared)
        order = sorted(range(count), key=lambda i: source_length(self.prepared.examples[i]))
        size = min(size, count)
        starts = sorted({max(0, min(count - size, quarter * count // 4 - size // 2)) for quarter in (1, 3)})
        return self._time(searches, [order[start : start + size] for start in starts], "timing batches")

    def _time(self, searches: Searches, groups: Sequence[Sequence[int]], what: str) -> list[RealTime]:
        """Of each search on the examples of every group together; ratios are to the first search with the
        same beam."""
        sources = [[prepared_source(self.prepared, i) for i in group] for group in groups]
        durations_s = [sum(self._duration_s(i) for i in group) for group in groups]
        total = len(searches) * len(groups) * (self.repeats + 1)
        done = 0

        def timer(arm: Timed, options: dict[str, Any]) -> Callable[[Any], tuple[float, float]]:
            run = arm.pool.recognizer.timer(**options)

            def timed(group: Any) -> tuple[float, float]:
                nonlocal done
                seconds = run(group)
                done += 1
                self.tell(what, done, total)
                return seconds

            return timed

        systems = {str(i): timer(arm, options) for i, (arm, options) in enumerate(searches)}
        measured = measure_rtf(systems, sources, durations_s, self.repeats)
        baseline: dict[int, float] = {}
        found = []
        for (arm, options), row in zip(searches, measured, strict=True):
            first = baseline.setdefault(options["beam"], row.rtf)
            found.append(row._replace(name=arm.name, ratio=row.rtf / first))
        return found

    def _duration_s(self, index: int) -> float:
        return self.prepared.examples[index].duration_s if is_heard(self.prepared) else 1.0


def is_heard(prepared: Prepared) -> bool:
    """Whether its examples have a duration: texts have none, and are timed by the sentence."""
    return prepared.storage.kind != "text"
