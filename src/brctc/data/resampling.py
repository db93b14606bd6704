"""Samples at another rate, of audio that comes bit by bit."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from brctc.data.audio import HIGHEST_RATE, LOWEST_RATE

HALF_WIDTH, KAISER_BETA = 10, 5.0  # of scipy's resample_poly, which whole files go through
MOST_PHASES = 50_000  # a filter of a million taps; rates up to 50 kHz need no more, whatever they are


def check_rate(sample_rate: int) -> None:
    """Refuses what is no rate of audio."""
    if isinstance(sample_rate, bool) or not isinstance(sample_rate, int):
        raise TypeError(f"the sample rate is {sample_rate!r}, expected a whole number")
    if not LOWEST_RATE <= sample_rate <= HIGHEST_RATE:
        raise ValueError(f"a sample rate of {sample_rate} Hz, expected {LOWEST_RATE} to {HIGHEST_RATE} Hz")


class ResamplingStream:
    """`brctc.data.audio.resample` of audio that comes bit by bit: all pushes and `finish` give the same
    samples, to rounding.

    A sample is there as soon as those under its filter are: ten of the lower rate ahead. scipy computes the
    filter but keeps no state between calls, so the state is kept here. soxr has streams, but other filters
    than files are resampled with, and a stream shall say what its file says.
    """

    def __init__(self, given: int, wanted: int) -> None:
        check_rate(given)
        check_rate(wanted)
        common = math.gcd(given, wanted)
        self.up, self.down = wanted // common, given // common
        if max(self.up, self.down) > MOST_PHASES:
            ratio = f"{self.down}:{self.up} is too fine"
            raise ValueError(f"{given} Hz cannot be resampled to {wanted} Hz as it comes: {ratio}")
        self._half = HALF_WIDTH * max(self.up, self.down)
        self._kept = np.zeros(0, np.float32)  # samples that outputs to come may need
        self._first = 0  # which one the first of them is
        self._given = 0
        self._made = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """The float32 samples that the next mono ones complete."""
        if self.up == self.down:
            return samples.astype(np.float32, copy=False)
        self._kept = np.concatenate([self._kept, samples.astype(np.float32, copy=False)])
        self._given += len(samples)
        # output m stands at m * down between inputs, which stand at multiples of up; it needs `half` around
        ready = (self._given * self.up - 1 - self._half) // self.down + 1
        return self._make(max(ready, self._made))

    def finish(self) -> np.ndarray:
        """The last samples: behind the end there is silence."""
        if self.up == self.down:
            return np.zeros(0, np.float32)
        total = -(-self._given * self.up // self.down)
        self._kept = np.concatenate([self._kept, np.zeros(2 * self._half // self.up + 2, np.float32)])
        return self._make(max(total, self._made))

    def _make(self, until: int) -> np.ndarray:
        """Outputs from where we are until there; what no later one needs is dropped."""
        from scipy.signal import upfirdn  # its import takes longer than most files do

        count = until - self._made
        if count == 0:
            return np.zeros(0, np.float32)
        at = self._made * self.down + self._half - self._first * self.up  # in the filter's output
        shift = -at % self.down  # zeros before the filter, so that an output falls on it
        skip = (at + shift) // self.down
        last = ((until - 1) * self.down + self._half) // self.up + 1 - self._first
        taps = np.concatenate([np.zeros(shift, np.float32), _taps(self.up, self.down)])
        made = upfirdn(taps, self._kept[:last], self.up, self.down)
        self._made = until
        needed = max(0, -(-(until * self.down - self._half) // self.up))
        if needed > self._first:
            self._kept = self._kept[needed - self._first :].copy()
            self._first = needed
        return made[skip : skip + count].astype(np.float32, copy=False)


@lru_cache(maxsize=8)
def _taps(up: int, down: int) -> np.ndarray:
    """The low-pass filter of `resample_poly`."""
    from scipy.signal import firwin

    most = max(up, down)
    window: Any = ("kaiser", KAISER_BETA)
    return np.asarray(up * firwin(2 * HALF_WIDTH * most + 1, 1 / most, window=window), np.float32)
