"""Streams: utterances whose features come bit by bit, encoded chunk by chunk, many at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from brctc.models.emformer import State
from brctc.models.online_encoder import OnlineEncoder
from brctc.models.subsampling import subsampled_lengths
from brctc.models.system import System


class EncodedFrames(NamedTuple):
    """The next T frames of a stream; T may be 0."""

    hidden: Tensor
    """(T, D)"""
    logits: Tensor
    """(T, C)"""


class Stream:
    """One utterance for an online system in evaluation mode.

    `push` takes features as they come, in any portions, `finish` says that these were all, and `read`
    gives the frames that can be encoded by now. All frames that were ever read are those of
    `System.encode`. Fewer feature frames than the subsampling needs have no frames at all.
    """

    def __init__(self, system: System) -> None:
        if not isinstance(system.encoder, OnlineEncoder):
            raise ValueError("the system's encoder is a conformer, which takes no streams: use an emformer")
        self.system = system
        self.encoder = system.encoder
        self.state: State = self.encoder.start(1)
        self.finished = False
        # what waits begins with the first frame of the next chunk
        self._portions = [self.state.left.new_zeros(0, system.feature_dim)]
        self._waiting = 0

    @torch.inference_mode()
    def push(self, features: Tensor) -> None:
        """Adds (T, F) features as they were extracted; T may be 0."""
        if self.finished:
            raise ValueError("the stream is finished: begin another one")
        if features.dim() != 2 or features.shape[1] != self.system.feature_dim:
            expected = f"(T, {self.system.feature_dim})"
            raise ValueError(f"features have shape {tuple(features.shape)}, expected {expected}")
        if len(features):
            features = features.to(self._portions[0])[None]
            self._portions.append(self.system.normalisation(features, torch.tensor([features.shape[1]]))[0])
            self._waiting += len(self._portions[-1])

    def finish(self) -> None:
        """No more features will come: what waits is the last, even if no whole chunk."""
        self.finished = True

    @property
    def ready(self) -> bool:
        """Whether a chunk can be encoded."""
        if self.finished:
            factor = self.encoder.subsampling.factor
            return int(subsampled_lengths(torch.tensor(self._waiting), factor)) > 0
        return self._waiting >= self.encoder.window_frames

    def read(self) -> EncodedFrames:
        """All frames that can be encoded and were not read before."""
        return read_together([self])[0]

    def _window(self) -> Tensor:
        """(W, F): the next chunk's features, as many as there are."""
        if len(self._portions) > 1:
            self._portions = [torch.cat(self._portions)]
        return self._portions[0][: self.encoder.window_frames]

    def _pass(self, frames: int, state: State) -> None:
        """The chunk is done."""
        rest = self._portions[0][frames:]
        # a small rest is copied, or it would hold the memory of all that came with it
        self._portions = [rest.clone() if len(rest) < self.encoder.window_frames else rest]
        self._waiting = len(rest)
        self.state = state


@torch.inference_mode()
def read_together(streams: Sequence[Stream]) -> list[EncodedFrames]:
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


def _step(streams: Sequence[Stream]) -> list[EncodedFrames]:
    """The next chunk of each."""
    encoder = streams[0].encoder
    windows = [stream._window() for stream in streams]
    features = torch.stack([F.pad(w, (0, 0, 0, encoder.window_frames - len(w))) for w in windows])
    lengths = torch.tensor([len(window) for window in windows])
    chunk, state = encoder.step(features, State.cat([stream.state for stream in streams]), lengths)
    for i, stream in enumerate(streams):
        stream._pass(encoder.hop_frames, state.select([i]))
    return [
        EncodedFrames(hidden[:length], logits[:length])
        for hidden, length, logits in zip(chunk.hidden, chunk.lengths.tolist(), chunk.logits, strict=True)
    ]


def _join(system: System, parts: list[EncodedFrames]) -> EncodedFrames:
    if not parts:
        like = next(system.parameters())
        return EncodedFrames(
            like.new_zeros(0, system.config.encoder.dim), like.new_zeros(0, system.vocab_size)
        )
    return EncodedFrames(*(torch.cat(part) for part in zip(*parts, strict=True)))
