"""Streams: utterances whose features come bit by bit, encoded chunk by chunk, many at a time."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brctc.models.base import FINAL, StreamOutput
from brctc.models.system import SystemConfig


class StreamingSystem(Protocol):
    """What streams need of a system: `System` has it, and so may a model that was made for another engine."""

    @property
    def config(self) -> SystemConfig: ...

    @property
    def input_size(self) -> int: ...

    @property
    def vocab_sizes(self) -> Mapping[str, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def initial_state(self, streams: int) -> Any:
        """Of so many streams, before the first chunk; of one that takes no streams, a ValueError."""
        ...

    def join_states(self, states: Sequence[Any]) -> Any:
        """The states of several streams as one batch; its `select` takes some of them out again."""
        ...

    def step(self, features: Tensor, lengths: Tensor, state: Any) -> tuple[StreamOutput, Any]:
        """The next chunk of N streams, (N, window_frames, F) with so many frames each, and the state behind
        it."""
        ...


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

    def __init__(self, system: StreamingSystem) -> None:
        self.system = system
        self.state: Any = system.initial_state(1)
        self.finished = False
        # what waits begins with the first frame of the next chunk
        self._portions = [torch.zeros(0, system.input_size, dtype=system.dtype, device=system.device)]
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
        return self._waiting >= self.system.config.encoder.window_frames

    def read(self) -> EncodedFrames:
        """All frames that can be encoded and were not read before."""
        return read_together([self])[0]

    def window(self) -> Tensor:
        """(W, F): the next chunk's features, as many as there are."""
        if len(self._portions) > 1:
            self._portions = [torch.cat(self._portions)]
        return self._portions[0][: self.system.config.encoder.window_frames]

    def advance(self, state: Any) -> None:
        """The chunk is done, and this is the state behind it."""
        rest = self._portions[0][self.system.config.encoder.hop_frames :]
        # a small rest is copied, or it would hold the memory of all that came with it
        self._portions = [rest.clone() if len(rest) < self.system.config.encoder.window_frames else rest]
        self._waiting = len(rest)
        self.state = state


@torch.inference_mode()
def read_together(streams: Sequence[EncoderStream]) -> list[EncodedFrames]:
    """Each stream's `read`, in steps of all that are ready: a step of many costs little more than of one."""
    if len({id(stream.system) for stream in streams}) > 1:
        raise ValueError("the streams are of different systems")
    if any(in_training(stream.system) for stream in streams):
        raise ValueError("the system is in training mode: call its eval() first")
    read: list[list[EncodedFrames]] = [[] for _ in streams]
    while ready := [i for i, stream in enumerate(streams) if stream.ready]:
        for i, frames in zip(ready, _step([streams[i] for i in ready]), strict=True):
            read[i].append(frames)
    return [_join(stream.system, frames) for stream, frames in zip(streams, read, strict=True)]


def _step(streams: Sequence[EncoderStream]) -> list[EncodedFrames]:
    """The next chunk of each."""
    system = streams[0].system
    frames = system.config.encoder.window_frames
    windows = [stream.window() for stream in streams]
    features = torch.stack([F.pad(w, (0, 0, 0, frames - len(w))) for w in windows])
    lengths = torch.tensor([len(window) for window in windows], device=features.device)
    joined = system.join_states([stream.state for stream in streams])
    (hidden, logits), state = system.step(features, lengths, joined)
    for i, stream in enumerate(streams):
        stream.advance(state.select([i]))
    return [
        EncodedFrames(frames[:length], scores[:length])
        for frames, length, scores in zip(hidden.values, hidden.lengths.tolist(), logits, strict=True)
    ]


def in_training(system: StreamingSystem) -> bool:
    """Whether it is a network in training mode: other engines have no such thing."""
    return isinstance(system, nn.Module) and system.training


def _join(system: StreamingSystem, parts: list[EncodedFrames]) -> EncodedFrames:
    if not parts:
        sizes = system.config.encoder.tap_dim(FINAL), system.vocab_sizes[system.config.output]
        nothing = (torch.zeros(0, size, dtype=system.dtype, device=system.device) for size in sizes)
        return EncodedFrames(*nothing)
    return EncodedFrames(*(torch.cat(part) for part in zip(*parts, strict=True)))
