"""Tokens of audio as it comes: greedy CTC of an online model, chunk by chunk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from brctc.data import FeatureStream, num_samples_heard
from brctc.data.audio import sample_problem
from brctc.data.features import check_streams
from brctc.decode.ctc import best_classes
from brctc.decode.recognizer import NO_CLOCK, check_model
from brctc.decode.times import frame_clock
from brctc.models import EncoderStream, Model, load_model, read_together

BLANK = 0
Samples = np.ndarray | Tensor
"""(T) mono samples, floats in [-1, 1]."""


@dataclass
class StreamedToken:
    """A token that a stream has said, from the moment it fires."""

    token: int
    piece: str
    """What the vocabulary calls it."""
    first_frame: int
    """Encoder frame in which it fires, counted from 0."""
    last_frame: int | None
    """The last frame of its run. None while the run may go on: then it is filled in once it is known."""
    fired_s: float
    """Where in the audio the frame ends in which it fires."""
    end_s: float | None
    """Where in the audio the last frame ends, as in `Result.token_times`. Filled in with `last_frame`."""
    known_s: float
    """How much audio had been pushed when it fired: small pushes know it sooner than large ones."""

    @property
    def latency_s(self) -> float:
        """How much audio was waited for to know it. Computation is not in it."""
        return self.known_s - self.fired_s


class StreamingRecognizer:
    """One stream of audio and what is said in it.

    >>> recognizer = StreamingRecognizer.from_directory("exp/online/model")
    >>> for samples in microphone:
    ...     for token in recognizer.push(samples):
    ...         print(token.piece, token.latency_s)
    >>> recognizer.flush()
    >>> recognizer.text

    Tokens and their frames are those of `Recognizer` with "ctc-greedy" on all the audio, however it
    is split, and what a push costs does not depend on the time already heard. Audio too short for a
    frame says nothing. Streams of one model can be computed together: `brctc.decode.push_together`.
    """

    def __init__(self, model: Model) -> None:
        check_model(model)
        if model.features is None:
            raise ValueError(f"{NO_CLOCK}; a stream is made of audio")
        check_streams(model.features)
        self.model = model
        self.sample_rate = model.features.sample_rate
        self.features = model.features
        self._clock = frame_clock(model.system.config.encoder.subsampling, model.features.frame_shift_s)
        model.system.eval()
        self.reset()

    @staticmethod
    def from_directory(directory: str | Path) -> "StreamingRecognizer":
        """The model that `brctc.models.save_model` wrote there. For many streams, load it once."""
        return StreamingRecognizer(load_model(directory))

    def reset(self) -> None:
        """Begins a new stream; what is left of the old one is dropped."""
        self._features = FeatureStream(self.features)
        self._stream = EncoderStream(self.model.system)
        self._samples = 0
        self._given_frames = 0  # features that were pushed instead of samples
        self._frames = 0
        self._last = BLANK  # class of the last frame
        self._running: StreamedToken | None = None
        self._tokens: list[int] = []

    def push(self, samples: Samples, sample_rate: int | None = None) -> list[StreamedToken]:
        """The tokens that fire now that these samples are there.

        samples: the next ones, mono, at the model's rate, as many as there are: none at all, too. Floats
            of any precision, in [-1, 1]. Integers, other shapes, NaN, infinities and what is far beyond 1
            are refused, and nothing has been heard then.
        sample_rate: what the samples have, if the caller knows. Another rate than the model's is refused.
        """
        return push_together([(self, samples)], sample_rate)[0]

    def accept(self, samples: np.ndarray) -> EncoderStream:
        """Hears checked samples; returns the stream whose frames can be read now."""
        self._stream.push(torch.from_numpy(self._features.push(samples)))
        self._samples += len(samples)
        return self._stream

    def push_features(self, features: Tensor | np.ndarray) -> list[StreamedToken]:
        """`push` for features that are there already: the next (T, F), of `brctc.data.extract_features`.

        The samples under their windows count as heard. A stream takes either samples or features.
        """
        self._check_open()
        if self._samples and not self._given_frames:
            raise ValueError("the stream began with samples: it takes no features")
        features = torch.as_tensor(features)
        if not features.isfinite().all():
            raise ValueError("a feature is not finite")
        self._stream.push(features)
        self._given_frames += len(features)
        self._samples = num_samples_heard(self._given_frames, self.features)
        return self.fire(self._stream.read().logits)

    def flush(self) -> list[StreamedToken]:
        """The audio ends here: the last tokens. No push can follow, but `reset`."""
        self._check_open()
        self._stream.push(torch.from_numpy(self._features.finish()))
        self._stream.finish()
        fired = self.fire(self._stream.read().logits)
        self._end_run()
        return fired

    @property
    def tokens(self) -> list[int]:
        """All that was said so far, as classes. This alone grows with a stream."""
        return list(self._tokens)

    @property
    def text(self) -> str:
        """All that was said so far."""
        return self.model.tokenizer.decode(self._tokens)

    @property
    def heard_s(self) -> float:
        """Seconds of audio that were pushed."""
        return self._samples / self.sample_rate

    def fire(self, logits: Tensor) -> list[StreamedToken]:
        """The tokens that begin in the next (T, C) frames."""
        fired = []
        for token in best_classes(logits)[1].tolist():
            if token != self._last:
                self._end_run()
                if token != BLANK:
                    piece = self.model.tokenizer.pieces[token]
                    fired_s = self._end_s(self._frames)
                    self._running = StreamedToken(
                        token, piece, self._frames, None, fired_s, None, self.heard_s
                    )
                    self._tokens.append(token)
                    fired.append(self._running)
            self._last = token
            self._frames += 1
        return fired

    def _end_run(self) -> None:
        if self._running is not None:
            self._running.last_frame = self._frames - 1
            self._running.end_s = self._end_s(self._frames - 1)
            self._running = None

    def _end_s(self, frame: int) -> float:
        first_s, frame_s = self._clock
        # a frame's features can be there a little before all of its time is
        return min(first_s + (frame + 1) * frame_s, self.heard_s)

    def _check_open(self) -> None:
        if self._stream.finished:
            raise ValueError("the stream was flushed: reset() begins another one")
        if self.model.system.training:  # before anything is heard
            raise ValueError("the system is in training mode: call its eval() first")

    def check(self, samples: Samples, sample_rate: int | None = None) -> np.ndarray:
        """The samples for the features; an error says why they cannot be taken."""
        self._check_open()
        if sample_rate is not None and sample_rate != self.sample_rate:
            raise ValueError(
                f"samples at {sample_rate!r} Hz, expected the model's rate: {self.sample_rate} Hz"
            )
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


def push_together(
    pushes: Sequence[tuple[StreamingRecognizer, Samples]], sample_rate: int | None = None
) -> list[list[StreamedToken]]:
    """Each recognizer's `push`, in shared model steps: many streams cost little more than one.

    The recognizers are different ones of the same `Model`. If one push is refused, all are.
    """
    recognizers = [recognizer for recognizer, _ in pushes]
    if len({id(recognizer) for recognizer in recognizers}) < len(pushes):
        raise ValueError("a recognizer is there twice: one push each")
    if len({id(recognizer.model.system) for recognizer in recognizers}) > 1:
        raise ValueError("the recognizers are of different models: make them of one")
    checked = []
    for i, (recognizer, samples) in enumerate(pushes):
        try:
            checked.append(recognizer.check(samples, sample_rate))
        except (TypeError, ValueError) as error:
            raise type(error)(f"push {i}: {error}" if len(pushes) > 1 else str(error)) from None
    streams = [recognizer.accept(samples) for recognizer, samples in zip(recognizers, checked, strict=True)]
    read = read_together(streams)
    return [recognizer.fire(frames.logits) for recognizer, frames in zip(recognizers, read, strict=True)]
