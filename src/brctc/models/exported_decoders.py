"""Decoders as graphs of ONNX: what searches ask of `Transducer` and `AttentionDecoder`, and no more.

Axes: N utterances (or hypotheses), B hypotheses of each, T frames, U tokens, D features, H heads, C classes.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from brctc.models.attention_decoder import AttentionConfig, Cache
from brctc.models.base import DecoderConfig
from brctc.models.graph import Graph
from brctc.models.transducer import BLANK, TransducerConfig


class ExportedTransducer(nn.Module):
    """A prediction network (`decoder`) and a joint network (`joiner`); frames come projected.

    The prediction network takes the last label and a state (N, S); or, as sherpa-onnx has it, the last labels
    (N, context) alone, -1 where there are none. Then the state is these labels.
    """

    def __init__(
        self, config: TransducerConfig, classes: int, context: int, graphs: dict[str, Graph]
    ) -> None:
        super().__init__()
        self.joint_dim, self.classes, self.context = config.joint_dim, classes, context
        self.state_dim = context or 2 * config.prediction_layers * config.prediction_dim
        self.decoder, self.joiner = graphs["decoder"], graphs["joiner"]

    def project(self, frames: Tensor) -> Tensor:
        """The encoder's graph has done it."""
        return frames

    def first_row(self) -> Tensor:
        """As `Transducer.first_row`."""
        nothing = torch.full((1, self.joint_dim + self.state_dim), -1.0 if self.context else 0.0)
        return self.follow(nothing, torch.full((1,), BLANK))

    def follow(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """As `Transducer.follow`."""
        state = rows[:, self.joint_dim :]
        if not self.context:
            return torch.cat([*self.decoder(tokens, state).values()], 1)
        labels = torch.cat([state[:, 1:], tokens[:, None].float()], 1)
        return torch.cat([*self.decoder(labels.long()).values(), labels], 1)  # a float holds any class

    def predictions(self, targets: Tensor) -> Tensor:
        """As `Transducer.predictions`."""
        rows = [self.first_row().expand(len(targets), -1)]
        for labels in targets.unbind(1):
            rows.append(self.follow(rows[-1], labels))
        return torch.stack(rows, 1)[..., : self.joint_dim]

    def joint_projected(self, projected_frame: Tensor, prediction: Tensor) -> Tensor:
        """As `Transducer.joint_projected`."""
        frame, prediction = torch.broadcast_tensors(projected_frame, prediction)
        (logits,) = self.joiner(frame.flatten(0, -2), prediction.flatten(0, -2)).values()
        return logits.view(*frame.shape[:-1], -1).log_softmax(-1)


class ExportedMemory(NamedTuple):
    """The encoder's frames, as every layer of a decoder attends to them."""

    keys_values: Tensor
    """(N, 2 layers, H, T, D / H)"""
    lengths: Tensor


class ExportedAttention(nn.Module):
    """`start` and `step` of an `AttentionDecoder`."""

    def __init__(self, config: AttentionConfig, classes: int, graphs: dict[str, Graph]) -> None:
        super().__init__()
        self.end = classes
        self._past = (2 * config.layers, config.heads, 0, config.dim // config.heads)
        self._start, self._step = graphs["start"], graphs["step"]

    def start(self, hidden: Tensor, lengths: Tensor) -> ExportedMemory:
        """As `AttentionDecoder.start`."""
        (found,) = self._start(hidden).values()
        return ExportedMemory(found, lengths)

    def step(
        self, memory: ExportedMemory, tokens: Tensor, cache: Cache | None = None
    ) -> tuple[Tensor, Cache]:
        """As `AttentionDecoder.step`."""
        past = torch.zeros(*tokens.shape, *self._past) if cache is None else cache.past[0]
        log_probs, past = self._step(tokens, *memory, past).values()
        return log_probs, Cache((past,))


PARTS = {"transducer": ("decoder", "joiner"), "attention": ("start", "step")}
"""The graphs of each kind of decoder."""


def load_decoder(config: DecoderConfig, classes: int, context: int, files: dict[str, Path]) -> nn.Module:
    """The decoder of a kind, from the files of its graphs."""
    graphs = {part: Graph(path) for part, path in files.items()}
    match config:
        case TransducerConfig():
            return ExportedTransducer(config, classes, context, graphs)
        case AttentionConfig():
            return ExportedAttention(config, classes, graphs)
        case _:
            raise ValueError(f"a decoder of kind {config.kind} is not known as a graph")
