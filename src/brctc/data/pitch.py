"""Pitch of speech, three values a frame, by Kaldi's method (Ghahremani et al., 2014, ICASSP).

The signal is low-passed and resampled to 4 kHz. For every frame the normalised cross-correlation (NCCF) of a
window with the same window `lag` later is found, and interpolated at lags that are even in log frequency.
The track is the path through lags that costs least: local costs want a high NCCF and, a little, a short lag;
jumps cost their square. The three values are Kaldi's, with its scales: how voiced a frame is; the log pitch
minus a mean over 1.5 s in which voiced frames count more; and the change of the log pitch.

Of Kaldi's two differences between files and streams (how loud the signal is on average; how late a track is
decided), a file has those of a stream where `look_ahead` says so: then both give the same values.
What is left out: the noise that Kaldi adds to the change. By hand, because no maintained package has it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from brctc import _native

Array = NDArray[np.float64]
States = NDArray[np.int32]
VALUES = 3
"""Of a frame."""
LOWEST_HZ, HIGHEST_HZ = 50.0, 400.0
RATE = 4000
CUTOFF_HZ = 1000.0
WINDOW = 100
"""Samples that are correlated: 25 ms."""
ZEROS = 5
"""Of the filter that interpolates between lags, on each side."""
MEASURED = (
    math.ceil(RATE * (1 / HIGHEST_HZ - ZEROS / (2 * RATE))),
    math.floor(RATE * (1 / LOWEST_HZ + ZEROS / (2 * RATE))),
)
"""The first and the last lag that is measured, in samples."""
FRAME = WINDOW + MEASURED[1]
"""Samples that a frame needs: the window, and the one that is shifted furthest."""
STEP = 0.005
"""From a lag to the next, as a share of it."""
BALLAST = 7000.0
"""How much less a frame that is quieter than the rest correlates."""
SHORT_LAGS = 10.0
"""Of the NCCF, what a second of lag costs: a period and its double correlate alike."""
JUMP = 0.1
"""What a jump costs, times the square of its log frequency."""
LEFT_FRAMES = RIGHT_FRAMES = 75
"""Of the mean that is taken off."""
CHANGE_FRAMES = 2
"""On each side, of the change."""
VOICING_SCALE, PITCH_SCALE, CHANGE_SCALE = 2.0, 2.0, 10.0


class Lags:
    """The lags at which the NCCF is measured, and those that a track goes through."""

    def __init__(self) -> None:
        self.first, self.last = MEASURED
        count = 1 + math.floor(math.log(HIGHEST_HZ / LOWEST_HZ) / math.log(1 + STEP))
        self.seconds: Array = (1 / HIGHEST_HZ) * np.power(1 + STEP, np.arange(count, dtype=np.float64))
        self.log_pitch: Array = -np.log(self.seconds)
        places = self.seconds * RATE - self.first
        near = np.floor(places).astype(int)[:, None] + np.arange(1 - ZEROS, 1 + ZEROS)
        inside = (near >= 0) & (near <= self.last - self.first)
        self._near = near.clip(0, self.last - self.first)
        self._weights = np.where(
            inside, low_pass((near - places[:, None]) / RATE, RATE / 2, ZEROS) / RATE, 0.0
        )

    def interpolate(self, nccf: Array) -> Array:
        """(T, measured) to (T, S)."""
        return np.einsum("tsn,sn->ts", nccf[:, self._near], self._weights)


def low_pass(seconds: Array, cutoff_hz: float, zeros: int) -> Array:
    """The impulse response of a low-pass filter: a sinc under a Hann window that ends at so many zeros."""
    window = 0.5 * (1 + np.cos(2 * np.pi * cutoff_hz / zeros * seconds))
    inside = np.abs(seconds) < zeros / (2 * cutoff_hz)
    return np.where(inside, 2 * cutoff_hz * np.sinc(2 * cutoff_hz * seconds) * window, 0.0)


class Resampler:
    """A stream at any rate to one at RATE, low-passed."""

    def __init__(self, sample_rate: int) -> None:
        self.rate = sample_rate
        shared = math.gcd(sample_rate, RATE)
        self._in_step, self._phases = sample_rate // shared, RATE // shared
        half = 1 / (2 * CUTOFF_HZ)
        self.reach = math.ceil(half * sample_rate)
        """Samples behind an output's time that it needs."""
        nearest = np.arange(self._phases) * self._in_step // self._phases
        taps = nearest[:, None] + np.arange(-self.reach, self.reach + 1)
        times = taps / sample_rate - np.arange(self._phases)[:, None] / RATE
        self._weights = low_pass(times, CUTOFF_HZ, 1) / sample_rate
        self._kept: Array = np.zeros(self.reach)  # silence before the beginning
        self._kept_from, self._heard, self._made = -self.reach, 0, 0

    def samples_for(self, outputs: int) -> int:
        """How many samples make so many outputs."""
        return self.reach + -(-outputs * self._in_step // self._phases)

    def push(self, samples: NDArray[np.floating]) -> Array:
        """What the next samples complete."""
        self._kept = np.concatenate([self._kept, samples.astype(np.float64)])
        self._heard += len(samples)
        return self._take(self._phases * max(0, self._heard - self.reach) // self._in_step)

    def finish(self) -> Array:
        """The rest; there is silence behind the end."""
        self._kept = np.concatenate([self._kept, np.zeros(self.reach + 1)])
        return self._take(-(-self._phases * self._heard // self._in_step))

    def _take(self, total: int) -> Array:
        outputs = np.arange(self._made, max(total, self._made))
        nearest = outputs * self._in_step // self._phases
        taps = nearest[:, None] + np.arange(-self.reach, self.reach + 1) - self._kept_from
        made = (self._kept[taps] * self._weights[outputs % self._phases]).sum(-1)
        self._made += len(outputs)
        needed = self._made * self._in_step // self._phases - self.reach
        self._kept, self._kept_from = self._kept[needed - self._kept_from :], needed
        return made


def correlate(windows: Array, lags: Lags) -> tuple[Array, Array]:
    """(T, measured): the inner products of each window with those behind it, and the products of their
    energies. (T, FRAME) in; the mean of the first window is taken off."""
    windows = windows - windows[:, :WINDOW].mean(1, keepdims=True)
    first = windows[:, :WINDOW]
    shifted = np.lib.stride_tricks.sliding_window_view(windows, WINDOW, axis=1)[:, lags.first :]
    energy = np.einsum("tlw,tlw->tl", shifted, shifted)
    return np.einsum("tw,tlw->tl", first, shifted), (first**2).sum(1, keepdims=True) * energy


def normalise(inner: Array, energies: Array, ballast: Array | float) -> Array:
    """The NCCF; 0 where there is silence."""
    bottom = np.sqrt(energies + ballast)
    return np.divide(inner, bottom, out=np.zeros_like(inner), where=bottom > 0)


class Track:
    """The cheapest path through the lags, decided `look_ahead` frames later, or at the end."""

    def __init__(self, lags: Lags, look_ahead: int | None) -> None:
        self.look_ahead = look_ahead
        self._factor = JUMP * math.log(1 + STEP) ** 2
        self._cost: Array = np.zeros(len(lags.seconds))
        self._parents: States = np.empty((0, len(self._cost)), np.int32)
        """Of the frames that are not decided."""
        self._best = 0

    def push(self, local: Array) -> States:
        """The states of frames that the local costs (T, S) of the next ones decide."""
        parents, best = np.empty(local.shape, np.int32), np.empty(len(local), np.int32)
        _native.track_pitch(np.ascontiguousarray(local), self._cost, self._factor, parents, best)
        before = len(self._parents)
        self._parents = np.concatenate([self._parents, parents])
        if len(best):
            self._best = int(best[-1])
        ahead = self.look_ahead
        if ahead is None or len(self._parents) <= ahead:
            return np.empty(0, np.int32)
        frames = np.arange(max(ahead, before), len(self._parents))
        states = best[frames - before]
        for back in range(ahead):
            states = self._parents[frames - back, states]
        self._parents = self._parents[len(self._parents) - ahead :]
        return states

    def finish(self) -> States:
        """Of all others."""
        state, states = self._best, []
        for parents in self._parents[::-1]:
            states.append(state)
            state = int(parents[state])
        return np.array(states[::-1], np.int32)


class Postprocessor:
    """What a model sees of a track."""

    def __init__(self, right_frames: int) -> None:
        self.right_frames = right_frames
        """How far the mean looks ahead; the change always looks CHANGE_FRAMES ahead."""
        self._nccf: Array = np.empty(0)
        self._log_pitch: Array = np.empty(0)
        self._done = self._dropped = 0

    def push(self, nccf: Array, log_pitch: Array, *, last: bool = False) -> NDArray[np.float32]:
        """(T, 3): the frames that the next ones complete, all of them with the last."""
        self._nccf = np.concatenate([self._nccf, nccf])
        self._log_pitch = np.concatenate([self._log_pitch, log_pitch])
        known = self._dropped + len(self._nccf)
        ahead = 0 if last else max(self.right_frames, CHANGE_FRAMES)
        frames = np.arange(self._done, max(self._done, known - ahead)) - self._dropped
        self._done += len(frames)
        made = np.stack([self._voicing(frames), self._pitch(frames), self._change(frames)], 1)
        unused = max(0, self._done - max(LEFT_FRAMES, CHANGE_FRAMES) - self._dropped)
        self._nccf, self._log_pitch = self._nccf[unused:], self._log_pitch[unused:]
        self._dropped += unused
        return made.astype(np.float32)

    def _voicing(self, frames: NDArray[np.intp]) -> Array:
        """From the NCCF to something like a Gaussian, low for voiced frames."""
        return VOICING_SCALE * ((1.0001 - self._nccf[frames].clip(-1, 1)) ** 0.15 - 1)

    def _pitch(self, frames: NDArray[np.intp]) -> Array:
        """Without the mean around it."""
        around = frames[:, None] + np.arange(-LEFT_FRAMES, self.right_frames + 1)
        there = (around >= 0) & (around < len(self._nccf))
        around = around.clip(0, max(0, len(self._nccf) - 1))
        weights = np.where(there, voiced_probability(self._nccf)[around], 0.0)
        mean = (weights * self._log_pitch[around]).sum(1) / weights.sum(1)
        return PITCH_SCALE * (self._log_pitch[frames] - mean)

    def _change(self, frames: NDArray[np.intp]) -> Array:
        """The slope of a line through the frames around; those beyond the ends are as the last."""
        offsets = np.arange(-CHANGE_FRAMES, CHANGE_FRAMES + 1)
        around = (frames[:, None] + offsets).clip(0, max(0, len(self._nccf) - 1))
        return CHANGE_SCALE * (self._log_pitch[around] * offsets).sum(1) / (offsets**2).sum()


def voiced_probability(nccf: Array) -> Array:
    """Kaldi's fit to hand-marked voicing."""
    n = np.abs(nccf).clip(max=1)
    score = -5.2 + 5.4 * np.exp(7.5 * (n - 1)) + 4.8 * n - 2 * np.exp(-10 * n) + 4.2 * np.exp(20 * (n - 1))
    return 1 / (1 + np.exp(-score))


class Wave:
    """The samples at RATE that are still needed, each with the sums of all samples and squares up to it."""

    def __init__(self) -> None:
        self.first = 0
        """The number of the first sample that is kept."""
        self._kept: Array = np.empty((3, 0))
        self._totals = (0.0, 0.0)

    @property
    def end(self) -> int:
        """How many samples there were in all."""
        return self.first + self._kept.shape[1]

    def push(self, samples: Array) -> None:
        """The next ones. Sums are taken one by one, so that they do not depend on the pushes."""
        both = zip(self._totals, (samples, samples**2), strict=True)
        sums = [np.cumsum(np.concatenate([[total], values]))[1:] for total, values in both]
        self._kept = np.concatenate([self._kept, np.stack([samples, *sums])], 1)
        if len(samples):
            self._totals = float(sums[0][-1]), float(sums[1][-1])

    def windows(self, starts: NDArray[np.intp], length: int) -> Array:
        """(T, length): the samples from each start on; silence before the first and behind the last."""
        places = starts[:, None] + np.arange(length) - self.first
        there = (places >= 0) & (places < self._kept.shape[1])
        return np.where(there, self._kept[0][places.clip(0, max(0, self._kept.shape[1] - 1))], 0.0)

    def mean_square(self, ends: NDArray[np.intp]) -> Array:
        """(T): of all samples before each end, without their mean."""
        ends = ends.clip(1, self.end)
        _, sums, squares = self._kept[:, ends - 1 - self.first]
        return squares / ends - (sums / ends) ** 2

    def forget(self, before: int) -> None:
        """Samples that are not needed any more; the last one is kept, for its sums."""
        unused = max(0, min(before, self.end - 1) - self.first)
        self._kept, self.first = self._kept[:, unused:], self.first + unused


class PitchTracker:
    """The NCCF and log pitch of each frame of audio that comes bit by bit; frame t is centred on (t + 1/2)
    shifts."""

    def __init__(self, sample_rate: int, frame_shift_ms: float, look_ahead: int | None = None) -> None:
        """A frame is decided `look_ahead` frames later; at the end if it is None."""
        self.lags, self.whole = Lags(), look_ahead is None
        self._frame_shift_ms = frame_shift_ms
        self._resampler, self._wave = Resampler(sample_rate), Wave()
        self._track = Track(self.lags, look_ahead)
        self._nccf: Array = np.empty((0, len(self.lags.seconds)))
        self._frames = 0

    def push(self, samples: NDArray[np.floating]) -> tuple[Array, Array]:
        """(T) each, of the frames that the next mono samples complete."""
        self._wave.push(self._resampler.push(samples))
        frames = self._frames
        while not self.whole and first_sample(frames, self._frame_shift_ms) + FRAME <= self._wave.end:
            frames += 1
        return self._decided(self._track.push(self._costs(frames)))

    def finish(self, num_frames: int) -> tuple[Array, Array]:
        """Of the last frames, so that there are so many in all; there is silence behind the end."""
        self._wave.push(self._resampler.finish())
        states = self._track.push(self._costs(num_frames))
        return self._decided(np.concatenate([states, self._track.finish()]))

    def _costs(self, frames: int) -> Array:
        """Local costs (T, S) of all frames before `frames`; their NCCF is kept until the track is decided."""
        new, shift = range(self._frames, frames), self._frame_shift_ms
        starts = np.array([first_sample(frame, shift) for frame in new], np.intp)
        if not len(starts):
            return np.empty((0, len(self.lags.seconds)))
        self._frames = frames
        inner, energies = correlate(self._wave.windows(starts, FRAME), self.lags)
        ends = np.full_like(starts, self._wave.end) if self.whole else starts + FRAME
        ballast = BALLAST * (self._wave.mean_square(ends) * WINDOW) ** 2
        pitch = self.lags.interpolate(normalise(inner, energies, ballast[:, None]))
        self._nccf = np.concatenate([self._nccf, self.lags.interpolate(normalise(inner, energies, 0.0))])
        self._wave.forget(first_sample(frames, shift))
        return 1 - pitch * (1 - SHORT_LAGS * self.lags.seconds)

    def _decided(self, states: States) -> tuple[Array, Array]:
        """The NCCF and the log pitch of the next frames of the track."""
        nccf = self._nccf[np.arange(len(states)), states]
        self._nccf = self._nccf[len(states) :]
        return nccf, self.lags.log_pitch[states]


class PitchStream:
    """Three values for each frame of audio that comes bit by bit, as a model sees them."""

    def __init__(self, sample_rate: int, frame_shift_ms: float, look_ahead: int | None = None) -> None:
        """A frame is there `look_ahead` frames later, CHANGE_FRAMES at least; at the end if it is None."""
        decided = None if look_ahead is None else look_ahead - CHANGE_FRAMES
        self._tracker = PitchTracker(sample_rate, frame_shift_ms, decided)
        self._post = Postprocessor(RIGHT_FRAMES if look_ahead is None else CHANGE_FRAMES)

    def push(self, samples: NDArray[np.floating]) -> NDArray[np.float32]:
        """(T, 3): the frames that the next mono samples complete."""
        return self._post.push(*self._tracker.push(samples))

    def finish(self, num_frames: int) -> NDArray[np.float32]:
        """The last frames, so that there are so many in all."""
        return self._post.push(*self._tracker.finish(num_frames), last=True)


def first_sample(frame: int, frame_shift_ms: float) -> int:
    """At RATE: the samples of a frame are centred on (t + 1/2) shifts."""
    return math.floor((frame + 0.5) * frame_shift_ms / 1000 * RATE) - FRAME // 2


def num_samples_heard(frames: int, sample_rate: int, frame_shift_ms: float, look_ahead: int) -> int:
    """How many samples a stream has heard when it has so many frames."""
    if frames == 0:
        return 0
    resampled = first_sample(frames - 1 + look_ahead, frame_shift_ms) + FRAME
    return Resampler(sample_rate).samples_for(resampled)
