"""Log mel filterbank features, and pitch beside them, the same for training and decoding."""

from typing import Annotated, Any

import kaldi_native_fbank
import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from brctc.config import Config
from brctc.data.pitch import CHANGE_FRAMES, VALUES, PitchStream
from brctc.data.pitch import num_samples_heard as heard_by_pitch


class FeatureConfig(Config):
    """What the features are; the defaults are the paper's (table 3)."""

    num_bins: Annotated[int, Field(ge=4, le=128)] = 80
    frame_length_ms: Annotated[float, Field(gt=0, le=1000)] = 25
    frame_shift_ms: Annotated[float, Field(gt=0, le=1000)] = 10
    sample_rate: Annotated[int, Field(ge=1000, le=1_000_000)] = 16000
    low_hz: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20
    """Where the lowest bin begins."""
    high_hz: Annotated[float, Field(allow_inf_nan=False)] = -400
    """Where the highest bin ends; 0 or less counts from half the sample rate. Both defaults are the limits
    that sherpa-onnx has."""
    dither: Annotated[float, Field(ge=0, le=1)] = 0
    """Standard deviation of noise added to the samples, the same noise for the same audio."""
    pitch: bool = False
    """Three more values: voicing, normalised log pitch and its change, by Kaldi's method."""
    pitch_look_ahead_frames: Annotated[int, Field(ge=CHANGE_FRAMES, le=1000)] | None = None
    """A frame's pitch is decided so many frames later, in files and in streams alike; by default from the
    whole utterance, and then there are no streams."""

    @model_validator(mode="after")
    def _whole_samples(self) -> "FeatureConfig":
        if self.frame_shift_ms > self.frame_length_ms:
            raise ValueError(f"frame_shift_ms {self.frame_shift_ms:g} leaves gaps between the frames")
        if (self.sample_rate * self.frame_shift_ms / 1000) % 1:
            raise ValueError(
                f"frame_shift_ms {self.frame_shift_ms:g} is not a whole number of samples "
                f"at {self.sample_rate} Hz"
            )
        half = self.sample_rate / 2
        if not self.low_hz < (self.high_hz if self.high_hz > 0 else half + self.high_hz) <= half:
            raise ValueError(
                f"low_hz {self.low_hz:g} and high_hz {self.high_hz:g} are no limits of a filterbank "
                f"at {self.sample_rate} Hz"
            )
        if self.pitch_look_ahead_frames is not None and not self.pitch:
            raise ValueError("pitch_look_ahead_frames is of pitch, which is not asked for")
        return self

    @property
    def dim(self) -> int:
        """Values of a frame."""
        return self.num_bins + (VALUES if self.pitch else 0)

    @property
    def frame_shift_s(self) -> float:
        """Seconds from one frame to the next."""
        return self.frame_shift_ms / 1000

    @property
    def shift_samples(self) -> int:
        """Samples from one frame to the next."""
        return round(self.sample_rate * self.frame_shift_ms / 1000)


LIMITS_BEFORE = {"low_hz": 20.0, "high_hz": 0.0}
"""Of the filterbank, before a config said so."""


def stored_features(content: Any) -> Any:
    """A config as it was written down, maybe before the filterbank's limits could be chosen."""
    return LIMITS_BEFORE | content if isinstance(content, dict) else content


def complete_features(content: Any) -> Any:
    """The same for what holds a config as `features`, if it does."""
    if not isinstance(content, dict) or "features" not in content:
        return content
    return content | {"features": stored_features(content["features"])}


def features_to_store(config: FeatureConfig) -> dict[str, Any]:
    """What `stored_features` reads; the same as ever where the limits are those of before."""
    content = config.model_dump()
    same = LIMITS_BEFORE.items() <= content.items()
    return {name: value for name, value in content.items() if not (same and name in LIMITS_BEFORE)}


StoredFeatures = Annotated[FeatureConfig | None, BeforeValidator(stored_features)]
"""The field of a file that was written down once."""


def num_frames(num_samples: int, config: FeatureConfig) -> int:
    """How many frames are made: frame t is centred on (t + 1/2) shifts, half a shift rounds up."""
    return (num_samples + config.shift_samples // 2) // config.shift_samples


def num_samples_heard(num_frames: int, config: FeatureConfig) -> int:
    """How many samples a stream has heard when it has so many frames: to the end of the last one's window."""
    if num_frames == 0:
        return 0
    window = int(config.sample_rate * config.frame_length_ms / 1000)
    middle = (num_frames - 1) * config.shift_samples + config.shift_samples // 2
    heard = max(0, middle - window // 2 + window)
    ahead = config.pitch_look_ahead_frames
    if not config.pitch or ahead is None:
        return heard
    return max(heard, heard_by_pitch(num_frames, config.sample_rate, config.frame_shift_ms, ahead))


def check_streams(config: FeatureConfig) -> None:
    """Refuses features that need the whole utterance."""
    if config.pitch and config.pitch_look_ahead_frames is None:
        raise ValueError(
            "pitch needs the whole utterance: a stream has it with pitch_look_ahead_frames only, such as 10"
        )


def extract_features(samples: np.ndarray, config: FeatureConfig) -> np.ndarray:
    """(T, config.dim) float32 from mono samples in [-1, 1].

    Kaldi's filterbank with centred frames, and pitch behind it. In this scale the filterbank's floor, log
    1.2e-7, is about the noise of 16-bit samples, so digital silence is no outlier.
    """
    if samples.ndim != 1:
        raise ValueError(f"samples have the shape {samples.shape}, expected one dimension (mono)")
    frames = num_frames(len(samples), config)
    if frames == 0:
        least = config.shift_samples - config.shift_samples // 2
        raise ValueError(f"{len(samples)} samples make no frame, expected {least} or more")
    stream = FeatureStream(config)
    return np.concatenate([stream.push(samples), stream.finish()])


class FeatureStream:
    """`extract_features` of audio that comes bit by bit: all pushes and `finish` give the same frames.

    A frame is there as soon as the samples under its window are, and with pitch its look-ahead. What is kept
    is little more than that.
    """

    def __init__(self, config: FeatureConfig) -> None:
        self.config = config
        self._fbank = FbankStream(config)
        self._pitch = None
        if config.pitch:
            ahead = config.pitch_look_ahead_frames
            self._pitch = PitchStream(config.sample_rate, config.frame_shift_ms, ahead)
        self._waiting = [np.empty((0, width), np.float32) for width in (config.num_bins, VALUES)]
        self._samples = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """(T, config.dim): the frames that the next mono samples complete; T may be 0."""
        self._samples += len(samples)
        filtered = self._fbank.push(samples)
        return filtered if self._pitch is None else self._join(filtered, self._pitch.push(samples))

    def finish(self) -> np.ndarray:
        """The last frames, whose windows reach beyond the end. Nothing can be pushed behind them."""
        filtered = self._fbank.finish()
        if self._pitch is None:
            return filtered
        return self._join(filtered, self._pitch.finish(num_frames(self._samples, self.config)))

    def _join(self, *parts: np.ndarray) -> np.ndarray:
        """The frames that are there of both."""
        both = [np.concatenate(pair) for pair in zip(self._waiting, parts, strict=True)]
        ready = min(map(len, both))
        self._waiting = [part[ready:] for part in both]
        return np.concatenate([part[:ready] for part in both], axis=1)


class FbankStream:
    """The filterbank of audio that comes bit by bit."""

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
    options.mel_opts.low_freq = config.low_hz
    options.mel_opts.high_freq = config.high_hz
    return options
