"""Progress of long work: bars on a terminal, a line now and then in a log."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

NOTE_S = 30.0  # between lines where there is no terminal to draw bars on
STATE_WIDTH = 40  # characters of what is said behind a bar, where the terminal has them
LONGEST_NAME = 28  # characters of a name on a narrow terminal


class ProgressDisplay:
    """Shows how far named pieces of work are. Use it in a `with` block.

    A log gets a line for each piece that has changed, at most every NOTE_S seconds.
    """

    def __init__(self, *, visible: bool = True, keep: bool = False, names: int = 0) -> None:
        """`keep` leaves the last state to be seen; `names` is the length of the longest name to come."""
        self._console = Console(stderr=True)
        room = self._console.width - names - 29  # beside names, steps and times
        self.narrow = room < STATE_WIDTH + 6
        self._visible, self._keep = visible, keep
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(8 if self.narrow else min(40, room - STATE_WIDTH)),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=self.narrow),
            TextColumn("left"),
            console=self._console,
            transient=not keep,
            disable=not (visible and self._console.is_terminal),
        )
        self._tasks: dict[str, TaskID] = {}
        self._states: dict[str, str] = {}
        self._noted: dict[str, str] = {}
        self._noted_at = time.monotonic()

    def __enter__(self) -> "ProgressDisplay":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._keep:
            self._note(at_last=True)

    def show(self, what: str, done: int, total: int | None, state: str = "") -> None:
        """So much of a piece of work is done, of so much; `state` is what else there is to say."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(self._short(what), completed=done, state=state)
        self._progress.update(self._tasks[what], completed=done, total=total, state=state)
        of_total = "" if total is None else f" of {total}"
        self._states[what] = f"{done}{of_total}" + (f", {state}" if state else "")
        self._note()

    def _short(self, name: str) -> str:
        return f"{name[:15]}…{name[-12:]}" if self.narrow and len(name) > LONGEST_NAME else name

    def _note(self, at_last: bool = False) -> None:
        quiet = self._console.is_terminal or not self._visible
        if quiet or not (at_last or time.monotonic() >= self._noted_at + NOTE_S):
            return
        for name, state in self._states.items():
            if self._noted.get(name) != state:
                self._console.print(f"{name}: {state}", highlight=False, markup=False, soft_wrap=True)
        self._noted = dict(self._states)
        self._noted_at = time.monotonic()
