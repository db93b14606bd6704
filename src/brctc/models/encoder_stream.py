"""Streams: utterances whose features come bit by bit, encoded chunk by chunk, many at a time."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from brctc.models.base import FINAL, StreamingEncoder
from brctc.models.system import System


class EncodedFrames(NamedTuple):
    """The next T frames of a stream; T may be 0."""

    hidden: Tensor
    """(T, D)"""
    logits: Tensor
    """(T, C)"""


class EncoderStream:
    """One utterance for a streaming system in evaluation mode.

    `push` takes features as they come, in any portions, `finish` says that these were all, and `read`
    gives the frames that can be encoded by now. All frames that were ever read are those of
    `System.encode`. Fewer feature frames than the subsampling needs have no frames at all.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.state: Any = system.initial_state(1)
        assert isinstance(system.encoder, StreamingEncoder), "initial_state has seen to it"
        self.encoder = system.encoder
        self.finished = False
        # what waits begins with the first frame of the next chunk
        self._portions = [next(system.parameters()).new_zeros(0, system.input_size)]
        self._waiting = 0

    @torch.inference_mode()
    def push(self, features: Tensor) -> None:
        """Adds (T, F) features as they were extracted; T may be 0."""
        if self.finished:
            raise ValueError("the stream is finished: begin another one")
        if features.dim() != 2 or features.shape[1] != self.system.input_size:
            expected = f"(T, {self.system.input_size})"
            raise ValueError(f"features have shape {tuple(features.shape)}, expected {expected}")
        if len(features):
            self._portions.append(features.to(self._portions[0]))
            self._waiting += len(features)

    def finish(self) -> None:
        """No more features will come: what waits is the last, even if no whole chunk."""
        self.finished = True

    @property
    def ready(self) -> bool:
        """Whether a chunk can be encoded."""
        if self.finished:
            return self.system.config.encoder.frames_out(self._waiting) > 0
        return self._waiting >= self.encoder.window_frames

    def read(self) -> EncodedFrames:
        """All frames that can be encoded and were not read before."""
        return read_together([self])[0]

    def window(self) -> Tensor:
        """(W, F): the next chunk's features, as many as there are."""
        if len(self._portions) > 1:
            self._portions = [torch.cat(self._portions)]
        return self._portions[0][: self.encoder.window_frames]

    def advance(self, state: Any) -> None:
        """The chunk is done, and this is the state behind it."""
        rest = self._portions[0][self.encoder.hop_frames :]
        # a small rest is copied, or it would hold the memory of all that came with it
        self._portions = [rest.clone() if len(rest) < self.encoder.window_frames else rest]
        self._waiting = len(rest)
        self.state = state


@torch.inference_mode()
def read_together(streams: Sequence[EncoderStream]) -> list[EncodedFrames]:
    """Each stream's `read`, in steps of all that are ready: a step of many costs little more than of one."""
    if len({id(stream.system) for stream in streams}) > 1:
        raise ValueError("the streams are of different systems")
    if any(stream.system.training for stream in streams):
        raise ValueError("the system is in training mode: call its eval() first")
    read: list[list[EncodedFrames]] = [[] for _ in streams]
    while ready := [i for i, stream in enumerate(streams) if stream.ready]:
        for i, frames in zip(ready, _step([streams[i] for i in ready]), strict=True):
            read[i].append(frames)
    return [_join(stream.system, frames) for stream, frames in zip(streams, read, strict=True)]


def _step(streams: Sequence[EncoderStream]) -> list[EncodedFrames]:
    """The next chunk of each."""
    system, encoder = streams[0].system, streams[0].encoder
    windows = [stream.window() for stream in streams]
    features = torch.stack([F.pad(w, (0, 0, 0, encoder.window_frames - len(w))) for w in windows])
    lengths = torch.tensor([len(window) for window in windows], device=features.device)
    joined = encoder.join_states([stream.state for stream in streams])
    (hidden, logits), state = system.step(features, lengths, joined)
    for i, stream in enumerate(streams):
        stream.advance(state.select([i]))
    return [
        EncodedFrames(frames[:length], scores[:length])
        for frames, length, scores in zip(hidden.values, hidden.lengths.tolist(), logits, strict=True)
    ]


def _join(system: System, parts: list[EncodedFrames]) -> EncodedFrames:
    if not parts:
        like = next(system.parameters())
        classes = system.vocab_sizes[system.config.output]
        dim = system.config.encoder.tap_dim(FINAL)
        return EncodedFrames(like.new_zeros(0, dim), like.new_zeros(0, classes))
    return EncodedFrames(*(torch.cat(part) for part in zip(*parts, strict=True)))
