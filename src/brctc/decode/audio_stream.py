"""One audio as it comes: samples, resampled, as features for a stream of the encoder."""

import numpy as np
import torch
from torch import Tensor

from brctc.data import FeatureConfig, FeatureStream, num_samples_heard
from brctc.data.audio import sample_problem
from brctc.data.resampling import ResamplingStream
from brctc.models import EncoderStream, StreamingSystem, in_training

Samples = np.ndarray | Tensor
"""(T) mono samples, floats in [-1, 1]."""


class AudioStream:
    """Samples of one audio and what the encoder has made of them: its features and state.

    What is refused was not heard.
    """

    def __init__(
        self, system: StreamingSystem, features: FeatureConfig, sample_rate: int | None = None
    ) -> None:
        """`sample_rate`: of the samples that come; another one than the model's is resampled."""
        self.model_rate = features.sample_rate
        self.sample_rate = sample_rate or features.sample_rate
        self.encoder = EncoderStream(system)
        self._resampling = ResamplingStream(self.sample_rate, self.model_rate)
        self._config = features
        self.features = FeatureStream(features)
        self._samples = 0
        self._given_frames = 0  # features that were pushed instead of samples

    @property
    def heard_s(self) -> float:
        """Seconds of audio that were pushed."""
        rate = self.model_rate if self._given_frames else self.sample_rate
        return self._samples / rate

    def check(self, samples: Samples, sample_rate: int | None = None) -> np.ndarray:
        """The samples for `accept`; an error says why they cannot be taken."""
        self.check_open()
        if sample_rate is not None and sample_rate != self.sample_rate:
            whose = "the model's" if self.sample_rate == self.model_rate else "the stream's"
            raise ValueError(f"samples at {sample_rate!r} Hz, expected {whose} rate: {self.sample_rate} Hz")
        if self._given_frames:
            raise ValueError("the stream began with features: it takes no samples")
        if not isinstance(samples, np.ndarray | Tensor):
            raise TypeError(f"samples are a {type(samples).__name__}, expected a numpy array or a tensor")
        kind = samples.dtype.name if isinstance(samples, np.ndarray) else str(samples.dtype)
        kind = kind.removeprefix("torch.")
        if "float" not in kind:
            hint = ": divide by 32768" if kind == "int16" else ""
            raise TypeError(f"samples are {kind}, expected floats in [-1, 1]{hint}")
        if samples.ndim != 1:
            raise ValueError(f"samples have the shape {tuple(samples.shape)}, expected one dimension (mono)")
        if isinstance(samples, Tensor):
            samples = samples.detach().cpu().double().numpy()
        if problem := sample_problem(samples, self._samples, " of the stream"):
            raise ValueError(problem)
        return samples

    def accept(self, samples: np.ndarray) -> None:
        """Hears checked samples."""
        self._push(self.features.push(self._resampling.push(samples)))
        self._samples += len(samples)

    def accept_features(self, features: Tensor | np.ndarray) -> None:
        """Hears features that are there already: the samples under their windows count as heard."""
        self.check_open()
        if self._samples and not self._given_frames:
            raise ValueError("the stream began with samples: it takes no features")
        features = torch.as_tensor(features)
        if not features.isfinite().all():
            raise ValueError("a feature is not finite")
        self.encoder.push(features)
        self._given_frames += len(features)
        self._samples = num_samples_heard(self._given_frames, self._config)

    def finish(self) -> None:
        """The audio ends here."""
        self.check_open()
        self._push(self.features.push(self._resampling.finish()))
        self._push(self.features.finish())
        self.encoder.finish()

    def check_open(self) -> None:
        """Refuses a stream that has ended, and a system in training."""
        if self.encoder.finished:
            raise ValueError("the stream was flushed: reset() begins another one")
        if in_training(self.encoder.system):  # before anything is heard
            raise ValueError("the system is in training mode: call its eval() first")

    def _push(self, features: np.ndarray) -> None:
        self.encoder.push(torch.from_numpy(features))
