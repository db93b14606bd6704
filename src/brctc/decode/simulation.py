"""Audio that plays into a recognizer, and when a listener gets each token.

Time is the listener's, in seconds since the audio began. It passes while audio is waited for and while
tokens are computed: by a real clock, or by a simulated one, which nobody has to wait for.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from brctc.data import num_samples_heard
from brctc.decode.audio_stream import Samples
from brctc.decode.greedy_stream import StreamedToken
from brctc.decode.streaming import StreamingRecognizer

BLOCK_S = 0.01  # of audio per push, as a sound card delivers it
T = TypeVar("T")


class Clock(Protocol):
    """Time in seconds since the audio began."""

    computed_s: float
    """All that `compute` took."""

    @property
    def now_s(self) -> float: ...

    def wait_until(self, moment_s: float) -> None:
        """Does nothing if that has passed: whoever is late goes on at once."""
        ...

    def compute(self, work: Callable[[], T]) -> T:
        """What the work gives, and the time that it takes passes."""
        ...


class RealClock:
    """The time of the world."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._start = time.perf_counter() - now_s
        self.computed_s = 0.0

    @property
    def now_s(self) -> float:
        return time.perf_counter() - self._start

    def wait_until(self, moment_s: float) -> None:
        time.sleep(max(0.0, moment_s - self.now_s))

    def compute(self, work: Callable[[], T]) -> T:
        start = self.now_s
        result = work()
        self.computed_s += self.now_s - start
        return result


class SimulatedClock:
    """Waiting takes no time, and computing takes the CPU time of this thread: what a RealClock would show on
    a machine that has nothing else to do."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.computed_s = 0.0

    def wait_until(self, moment_s: float) -> None:
        self.now_s = max(self.now_s, moment_s)

    def compute(self, work: Callable[[], T]) -> T:
        start = time.thread_time()
        result = work()
        took = time.thread_time() - start
        self.now_s += took
        self.computed_s += took
        return result


def play(
    recognizer: StreamingRecognizer, audio: Samples | Iterable[Samples], clock: Clock
) -> Iterator[tuple[StreamedToken, float]]:
    """Each token, and when it is handed over.

    audio: (T) samples, which come in blocks of 10 ms; or (T, F) features of them, which come one by one,
        each when the samples under its window are there; or blocks of samples, as a microphone gives them.

    The stream is flushed when the audio ends.
    """
    for moment_s, push in _pushes(recognizer, audio):
        clock.wait_until(moment_s)
        yield from _handed(clock.compute(push), clock)
    yield from _handed(clock.compute(recognizer.flush), clock)


def _handed(tokens: list[StreamedToken], clock: Clock) -> Iterator[tuple[StreamedToken, float]]:
    now_s = clock.now_s  # whatever the listener does with the first one
    for token in tokens:
        yield token, now_s


def _pushes(
    recognizer: StreamingRecognizer, audio: Samples | Iterable[Samples]
) -> Iterator[tuple[float, Callable[[], list[StreamedToken]]]]:
    """When each part is there, and what takes it."""
    rate = recognizer.sample_rate
    if not isinstance(audio, np.ndarray | Tensor):
        heard = 0
        for part in audio:
            heard += len(part)
            yield heard / rate, lambda part=part: recognizer.push(part)
        return
    if audio.ndim == 2:
        config = recognizer.features
        features = torch.as_tensor(audio)
        for frame in range(len(features)):
            # at the end a window may reach beyond the audio
            heard = min(num_samples_heard(frame + 1, config), len(features) * config.shift_samples)
            yield heard / rate, lambda part=features[frame : frame + 1]: recognizer.push_features(part)
        return
    block = round(BLOCK_S * rate)
    for first in range(0, len(audio), block):
        part = audio[first : first + block]
        yield (first + len(part)) / rate, lambda part=part: recognizer.push(part)
