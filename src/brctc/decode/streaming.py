"""Tokens of audio as it comes: greedy CTC of an online model, chunk by chunk.

Three parts: a recognizer, which is a model that all its streams share; a stream (`AudioStream`), the features
and the encoder's state of one audio; and a decoder (`GreedyDecoder`), which makes tokens of logits. A
`StreamingRecognizer` is one stream with its decoder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from brctc.data.features import check_streams
from brctc.decode.audio_stream import AudioStream, Samples
from brctc.decode.endpoint import EndpointRules
from brctc.decode.greedy_stream import GreedyDecoder, Segment, StreamedToken
from brctc.decode.recognizer import NO_CLOCK, check_model
from brctc.decode.times import frame_clock
from brctc.models import Model, load_model, read_together


class OnlineRecognizer:
    """A model that is checked once and shared by its streams.

    >>> recognizer = OnlineRecognizer.from_directory("exp/online/model", EndpointRules())
    >>> streams = [recognizer.create_stream(sample_rate=48000) for _ in callers]
    >>> push_together(list(zip(streams, blocks)))
    """

    def __init__(self, model: Model, rules: EndpointRules | None = None) -> None:
        """`rules`: when segments end; without, there are none."""
        if isinstance(model.system, nn.Module):  # and no model of another engine
            check_model(model)
            model.system.eval()
        if model.features is None:
            raise ValueError(f"{NO_CLOCK}; a stream is made of audio")
        check_streams(model.features)
        self.model, self.features, self.rules = model, model.features, rules
        self.sample_rate = model.features.sample_rate
        self._clock = frame_clock(model.system.config.encoder.subsampling, model.features.frame_shift_s)
        model.system.initial_state(1)  # a model that takes no streams says so now

    @staticmethod
    def from_directory(directory: str | Path, rules: EndpointRules | None = None) -> "OnlineRecognizer":
        """The model that `brctc.models.save_model` wrote there."""
        return OnlineRecognizer(load_model(directory), rules)

    def create_stream(self, sample_rate: int | None = None, name: str = "") -> "StreamingRecognizer":
        """A new audio, at its own rate; errors call it by its name."""
        return StreamingRecognizer(self, sample_rate, name)

    def audio(self, sample_rate: int | None = None) -> AudioStream:
        """The stream's part alone."""
        return AudioStream(self.model.system, self.features, sample_rate)

    def decoder(self) -> GreedyDecoder:
        """The decoder's part alone."""
        return GreedyDecoder(self.model.tokenizer, self._clock, self.rules)


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

    def __init__(
        self, recognizer: OnlineRecognizer | Model, sample_rate: int | None = None, name: str = ""
    ) -> None:
        """`sample_rate`: what the samples have; another one than the model's is resampled as they come."""
        if not isinstance(recognizer, OnlineRecognizer):
            recognizer = OnlineRecognizer(recognizer)
        self.recognizer, self.model, self.features = recognizer, recognizer.model, recognizer.features
        self.sample_rate, self.name = sample_rate or recognizer.sample_rate, name
        self.reset()

    @staticmethod
    def from_directory(directory: str | Path) -> "StreamingRecognizer":
        """The model that `brctc.models.save_model` wrote there. For many streams, load it once."""
        return StreamingRecognizer(load_model(directory))

    def reset(self) -> None:
        """Begins a new stream; what is left of the old one is dropped."""
        self.audio = self.recognizer.audio(self.sample_rate)
        self.decoder = self.recognizer.decoder()

    def push(self, samples: Samples, sample_rate: int | None = None) -> list[StreamedToken]:
        """The tokens that fire now that these samples are there.

        samples: the next ones, mono, at the stream's rate, as many as there are: none at all, too. Floats
            of any precision, in [-1, 1]. Integers, other shapes, NaN, infinities and what is far beyond 1
            are refused, and nothing has been heard then.
        sample_rate: what the samples have, if the caller knows. Another rate than the stream's is refused.
        """
        self.audio.accept(self.audio.check(samples, sample_rate))
        return self._read()

    def push_features(self, features: Tensor | np.ndarray) -> list[StreamedToken]:
        """`push` for features that are there already: the next (T, F), of `brctc.data.extract_features`.

        The samples under their windows count as heard. A stream takes either samples or features.
        """
        self.audio.accept_features(features)
        return self._read()

    def flush(self) -> list[StreamedToken]:
        """The audio ends here: the last tokens. No push can follow, but `reset`."""
        self.audio.finish()
        return self._read()

    def pop_segments(self) -> list[Segment]:
        """Those that have ended since the last call; the last one ends with `flush`."""
        return self.decoder.pop_segments()

    @property
    def tokens(self) -> list[int]:
        """All that was said so far, as classes. This alone grows with a stream."""
        return list(self.decoder.tokens)

    @property
    def text(self) -> str:
        """All that was said so far."""
        return self.model.tokenizer.decode(self.decoder.tokens)

    @property
    def heard_s(self) -> float:
        """Seconds of audio that were pushed."""
        return self.audio.heard_s

    def fire(self, logits: Tensor) -> list[StreamedToken]:
        """The tokens that begin in the next (T, C) frames; if the audio has ended, all ends with them."""
        fired = self.decoder.decode(logits, self.heard_s)
        if self.audio.encoder.finished:
            self.decoder.finish(self.heard_s)
        return fired

    def _read(self) -> list[StreamedToken]:
        return self.fire(self.audio.encoder.read().logits)


class PushError(ValueError):
    """Some streams of a call were refused, and have heard nothing of it; the others went on."""

    def __init__(
        self, message: str, errors: Mapping[int, Exception], fired: list[list[StreamedToken]]
    ) -> None:
        super().__init__(message)
        self.errors = errors
        """Why, by their places in the call."""
        self.fired = fired
        """The tokens of all; the refused have none."""


def push_together(
    pushes: Sequence[tuple[StreamingRecognizer, Samples]], sample_rate: int | None = None
) -> list[list[StreamedToken]]:
    """Each recognizer's `push`, in shared model steps: many streams cost little more than one.

    The recognizers are different ones of the same `Model`. A push that is refused is so alone: when all
    others have been heard, `PushError` names it and has their tokens.
    """
    recognizers = [recognizer for recognizer, _ in pushes]
    _check_together(recognizers)
    errors: dict[int, Exception] = {}
    for place, (recognizer, samples) in enumerate(pushes):
        try:
            recognizer.audio.accept(recognizer.audio.check(samples, sample_rate))
        except (TypeError, ValueError) as error:
            errors[place] = error
    return _fire_together(recognizers, errors, "push")


def flush_together(recognizers: Sequence[StreamingRecognizer]) -> list[list[StreamedToken]]:
    """Each recognizer's `flush`, as `push_together`."""
    _check_together(recognizers)
    errors: dict[int, Exception] = {}
    for place, recognizer in enumerate(recognizers):
        try:
            recognizer.audio.finish()
        except ValueError as error:
            errors[place] = error
    return _fire_together(recognizers, errors, "flush")


def _check_together(recognizers: Sequence[StreamingRecognizer]) -> None:
    if len({id(recognizer) for recognizer in recognizers}) < len(recognizers):
        raise ValueError("a recognizer is there twice: one push each")
    if len({id(recognizer.model.system) for recognizer in recognizers}) > 1:
        raise ValueError("the recognizers are of different models: make them of one")


def _fire_together(
    recognizers: Sequence[StreamingRecognizer], errors: dict[int, Exception], what: str
) -> list[list[StreamedToken]]:
    fired: list[list[StreamedToken]] = [[] for _ in recognizers]
    heard = [place for place in range(len(recognizers)) if place not in errors]
    read = read_together([recognizers[place].audio.encoder for place in heard])
    for place, frames in zip(heard, read, strict=True):
        fired[place] = recognizers[place].fire(frames.logits)
    if errors:
        named = [f"{what} {_name(recognizers, place)}: {error}" for place, error in errors.items()]
        raise PushError("; ".join(named), errors, fired)
    return fired


def _name(recognizers: Sequence[StreamingRecognizer], place: int) -> str:
    name = recognizers[place].name
    return f"{place} ({name})" if name else str(place)
