"""Log mel filterbank features, the same for training and decoding."""

from typing import Annotated

import kaldi_native_fbank
import numpy as np
from pydantic import Field, model_validator

from brctc.config import Config


class FeatureConfig(Config):
    """What the features are; the defaults are the paper's (table 3)."""

    num_bins: Annotated[int, Field(ge=4, le=128)] = 80
    frame_length_ms: Annotated[float, Field(gt=0, le=1000)] = 25
    frame_shift_ms: Annotated[float, Field(gt=0, le=1000)] = 10
    sample_rate: Annotated[int, Field(ge=1000, le=1_000_000)] = 16000
    dither: Annotated[float, Field(ge=0, le=1)] = 0
    """Standard deviation of noise added to the samples, the same noise for the same audio."""

    @model_validator(mode="after")
    def _whole_samples(self) -> "FeatureConfig":
        if self.frame_shift_ms > self.frame_length_ms:
            raise ValueError(f"frame_shift_ms {self.frame_shift_ms:g} leaves gaps between the frames")
        if (self.sample_rate * self.frame_shift_ms / 1000) % 1:
            raise ValueError(
                f"frame_shift_ms {self.frame_shift_ms:g} is not a whole number of samples "
                f"at {self.sample_rate} Hz"
            )
        return self

    @property
    def frame_shift_s(self) -> float:
        """Seconds from one frame to the next."""
        return self.frame_shift_ms / 1000

    @property
    def shift_samples(self) -> int:
        """Samples from one frame to the next."""
        return round(self.sample_rate * self.frame_shift_ms / 1000)


def num_frames(num_samples: int, config: FeatureConfig) -> int:
    """How many frames `fbank` makes: frame t is centred on (t + 1/2) shifts, half a shift rounds up."""
    return (num_samples + config.shift_samples // 2) // config.shift_samples


def num_samples_heard(num_frames: int, config: FeatureConfig) -> int:
    """How many samples a stream has heard when it has so many frames: to the end of the last one's window."""
    if num_frames == 0:
        return 0
    window = int(config.sample_rate * config.frame_length_ms / 1000)
    middle = (num_frames - 1) * config.shift_samples + config.shift_samples // 2
    return max(0, middle - window // 2 + window)


def fbank(samples: np.ndarray, config: FeatureConfig) -> np.ndarray:
    """(T, num_bins) float32 from mono samples in [-1, 1].

    Kaldi's filterbank with centred frames. In this scale its floor, log 1.2e-7, is about the noise of
    16-bit samples, so digital silence is no outlier.
    """
    if samples.ndim != 1:
        raise ValueError(f"samples have the shape {samples.shape}, expected one dimension (mono)")
    frames = num_frames(len(samples), config)
    if frames == 0:
        least = config.shift_samples - config.shift_samples // 2
        raise ValueError(f"{len(samples)} samples make no frame, expected {least} or more")
    stream = FbankStream(config)
    return np.concatenate([stream.push(samples), stream.finish()])


class FbankStream:
    """`fbank` of audio that comes bit by bit: the frames of all pushes and of `finish` are the same.

    A frame is there as soon as the samples under its window are. What is kept is less than a window.
    """

    def __init__(self, config: FeatureConfig) -> None:
        self.config = config
        self._computer = kaldi_native_fbank.OnlineFbank(_options(config))
        self._noise = np.random.default_rng(0)
        self._frames = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """(T, num_bins): the frames that the next mono samples complete; T may be 0."""
        config = self.config
        samples = samples.astype(np.float32, copy=False)
        frames = []
        # second by second: the computer takes Python's floats, which are large
        for first in range(0, len(samples), config.sample_rate):
            part = samples[first : first + config.sample_rate]
            if config.dither:
                noise = self._noise.standard_normal(len(part), dtype=np.float32)
                part = part + np.float32(config.dither) * noise
            self._computer.accept_waveform(config.sample_rate, part.tolist())
            frames.append(self._take())
        return np.concatenate(frames) if frames else self._take()

    def finish(self) -> np.ndarray:
        """The last frames, whose windows reach beyond the end. Nothing can be pushed behind them."""
        self._computer.input_finished()
        return self._take()

    def _take(self) -> np.ndarray:
        ready = self._computer.num_frames_ready  # of all, those that were taken included
        frames = np.empty((ready - self._frames, self.config.num_bins), np.float32)
        for row, frame in enumerate(range(self._frames, ready)):
            frames[row] = self._computer.get_frame(frame)
        self._computer.pop(len(frames))
        self._frames = ready
        return frames


def _options(config: FeatureConfig) -> kaldi_native_fbank.FbankOptions:
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = config.sample_rate
    options.frame_opts.frame_length_ms = config.frame_length_ms
    options.frame_opts.frame_shift_ms = config.frame_shift_ms
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = False
    options.mel_opts.num_bins = config.num_bins
    return options
