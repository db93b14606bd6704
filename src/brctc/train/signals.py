"""What can stop a run: signals, and losses that are not finite."""

import signal
import threading
import time
from types import FrameType
from typing import Any

SAME_SIGNAL_S = 1.0


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """A signal has stopped the run; a checkpoint lets it continue."""


class NonFiniteError(ArithmeticError):
    """A loss or gradient was NaN or infinite; the message names the utterances."""


class StopSignal:
    """Notices the first SIGINT or SIGTERM, so that the step can end; a second one does its usual work,
    unless it comes at once: torchrun passes on what all processes have got already."""

    def __init__(self) -> None:
        self.received = False
        self._first_s = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # no other may have handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received, self._first_s = True, time.monotonic()
        elif time.monotonic() > self._first_s + SAME_SIGNAL_S:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
