"""Encoders as graphs of ONNX: whole utterances in one call, or streams chunk by chunk.

A graph holds all between features (or tokens) and log-probabilities: normalisation, trimming, CTC heads, and
what decoders attend to. `graph_outputs` says what comes out; of streams, the new state comes behind that, in
the order in which the old one is taken.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from brctc.data.batch import Padded
from brctc.models.base import FINAL, StreamingEncoder, TrimConfig
from brctc.models.graph import Graph
from brctc.models.system import Encoded, SystemConfig

END = -1e30
"""As a feature: the stream has ended before this frame. For graphs of sherpa-onnx, which take no lengths."""


class Output(NamedTuple):
    """A sequence that comes out of a graph; `<name>_len` says how long it is."""

    name: str
    tap: str
    text: str | None = None
    """Log-probabilities of a CTC head on the tap."""
    decoder: str | None = None
    """What a decoder attends to; for a transducer projected already."""


def graph_outputs(config: SystemConfig, trim: TrimConfig | None) -> list[Output]:
    """Of a system: first the one that sherpa-onnx takes. What is neither of a head nor of a decoder is a
    length alone."""
    main = config.decoder_name("transducer")
    names = sorted(config.decoders, key=lambda name: name != main)
    memories = [
        Output("encoder_out" if name == main else f"memory_{name}", config.decoders[name].on, decoder=name)
        for name in names
    ]
    texts = sorted(config.heads, key=lambda text: text != config.output)
    heads = [
        Output("log_probs" if text == config.output else f"log_probs_{text}", config.heads[text].on, text)
        for text in texts
    ]
    found = [*memories, *heads] if main is not None else [*heads, *memories]
    before, watched = config.encoder.trims_at, config.watched_text(trim)
    if before is not None and watched is not None and config.heads[watched].on != before:
        found.append(Output(f"{before}_log_probs", before, watched))
    for tap in sorted({before or FINAL, FINAL} - {output.tap for output in found}):
        found.append(Output(tap, tap))
    return found


class StateTensor(NamedTuple):
    """A part of a stream's state: zeros at first."""

    shape: tuple[int, ...]
    """Of one stream."""
    axis: int = 0
    """That of the streams."""
    integer: bool = False


class ExportedState(NamedTuple):
    """What N streams have left behind."""

    tensors: tuple[Tensor, ...]
    axes: tuple[int, ...]

    def select(self, streams: Sequence[int] | Tensor) -> "ExportedState":
        """The state of some of the streams."""
        index = torch.as_tensor(streams)
        parts = zip(self.tensors, self.axes, strict=True)
        return ExportedState(tuple(part.index_select(axis, index) for part, axis in parts), self.axes)


class ExportedEncoded(Encoded):
    """What a graph has put out of a batch."""

    def __init__(self, config: SystemConfig, outputs: Sequence[Output], found: Mapping[str, Padded]) -> None:
        self._config = config
        self.taps = {output.tap: _inside(found[output.name]) for output in outputs}
        self._texts = {(output.tap, output.text): found[output.name] for output in outputs if output.text}
        self._memories = {output.decoder: found[output.name] for output in outputs if output.decoder}

    def logits(self, tap: str | None = None, text: str | None = None) -> Padded:
        """Log-probabilities, which are logits as well."""
        text = text or self._config.output
        tap = tap or (self._config.heads[text].on if text in self._config.heads else FINAL)
        if (tap, text) not in self._texts:
            raise ValueError(f"the exported graph does not predict {text!r} on the tap {tap!r}")
        return self._texts[tap, text]

    def memory(self, decoder: str) -> Padded:
        return self._memories[decoder]


def _inside(output: Padded) -> Padded:
    """A tap whose values stay inside of the graph."""
    return Padded(output.values[..., :0], output.lengths)


class StreamSizes(NamedTuple):
    """Of a `StreamingEncoder`, in frames."""

    chunk_frames: int
    right_context_frames: int
    hop_frames: int
    window_frames: int


class ExportedStreamingEncoder(StreamingEncoder):
    """A step of streams."""

    def __init__(
        self, config: SystemConfig, graph: Graph, sizes: StreamSizes, state: Sequence[StateTensor]
    ) -> None:
        super().__init__()
        self.config, self.graph, self.state = config, graph, tuple(state)
        self.chunk_frames, self.right_context_frames, self.hop_frames, self.window_frames = sizes
        self.takes_lengths = len(graph.inputs) == 2 + len(self.state)

    def initial_state(self, streams: int) -> ExportedState:
        parts = []
        for shape, axis, integer in self.state:
            whole = (*shape[:axis], streams, *shape[axis:])
            parts.append(torch.zeros(whole, dtype=torch.long if integer else torch.float))
        return ExportedState(tuple(parts), tuple(part.axis for part in self.state))

    def join_states(self, states: Sequence[ExportedState]) -> ExportedState:
        axes = states[0].axes
        parts = zip(*(state.tensors for state in states), strict=True)
        return ExportedState(tuple(torch.cat(p, axis) for p, axis in zip(parts, axes, strict=True)), axes)

    def run(
        self, features: Tensor, lengths: Tensor, state: ExportedState
    ) -> tuple[dict[str, Padded], ExportedState]:
        """The outputs of the next chunk of N streams, and the state behind it."""
        if self.takes_lengths:
            found = self.graph(features, lengths, *state.tensors)
        else:
            inside = torch.arange(features.shape[1]) < lengths[:, None]
            found = self.graph(features.where(inside[..., None], END), *state.tensors)
        names = list(found)[: len(found) - len(self.state)]
        new = ExportedState(tuple(found[name] for name in list(found)[len(names) :]), state.axes)
        frames = self._frames(lengths).clamp(max=self.chunk_frames)
        return {name: Padded(found[name], frames) for name in names}, new

    def run_all(self, source: Padded) -> dict[str, Padded]:
        """The outputs of whole utterances."""
        values, lengths = source
        total = self._frames(lengths)
        chunks = max(1, -(-int(total.max()) // self.chunk_frames))
        missing = max(0, (chunks - 1) * self.hop_frames + self.window_frames - values.shape[1])
        values, state = F.pad(values, (0, 0, 0, missing)), self.initial_state(len(values))
        parts: dict[str, list[Tensor]] = {}
        for first in range(0, chunks * self.hop_frames, self.hop_frames):
            left = (lengths - first).clamp(0, self.window_frames)
            found, state = self.run(values[:, first : first + self.window_frames], left, state)
            for name, (frames, _) in found.items():
                parts.setdefault(name, []).append(frames)
        return {name: Padded(torch.cat(frames, 1), total) for name, frames in parts.items()}

    def _frames(self, lengths: Tensor) -> Tensor:
        counts = [self.config.encoder.frames_out(length) for length in lengths.tolist()]
        return torch.tensor(counts).clamp(min=0)
