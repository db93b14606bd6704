"""The parts of a system as ONNX takes them: tensors in, tensors out. `brctc.models.exported` runs what they
become, and says what the axes are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brctc.data.batch import Padded
from brctc.data.subsampling import WINDOW
from brctc.models import AttentionDecoder, Cache, Memory, System, Transducer, TrimConfig
from brctc.models.exported_encoder import Output
from brctc.models.layers import attention_mask
from brctc.models.positions import frame_positions

DYNAMIC = torch.export.Dim.DYNAMIC


class Example(NamedTuple):
    """An input of a graph: a name, a value to trace with, and the axes whose size is free."""

    name: str
    value: Tensor
    free: tuple[int, ...] = (0,)


class EncoderModule(nn.Module):
    """Whole utterances, trimmed if told how. One too short for a frame has none."""

    def __init__(self, system: System, outputs: Sequence[Output], trim: TrimConfig | None) -> None:
        super().__init__()
        self.system, self.outputs, self.trim = system, outputs, trim

    def examples(self) -> list[Example]:
        lengths = torch.tensor([50, 40])
        if self.system.config.encoder.input == "tokens":
            return [Example("x", torch.zeros(2, 50, dtype=torch.long), (0, 1)), Example("x_lens", lengths)]
        return [Example("x", torch.randn(2, 50, self.system.input_size), (0, 1)), Example("x_lens", lengths)]

    def output_names(self) -> list[str]:
        names = [(output.name, f"{output.name}_len") for output in self.outputs]
        return [name for pair in names for name in (pair if self._has_values(pair[0]) else pair[1:])]

    def _has_values(self, name: str) -> bool:
        return any(output.name == name and (output.text or output.decoder) for output in self.outputs)

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, ...]:
        least = 1
        if self.system.config.encoder.subsampling > 1:
            least, frames = WINDOW, x.shape[1]
            x = F.pad(x, (0, 0, 0, WINDOW - 1))[:, : torch.sym_max(frames, WINDOW)]
        encoded = self.system.encode(Padded(x, x_lens.clamp(min=least)), self.trim)
        found = []
        for output in self.outputs:
            lengths = encoded.taps[output.tap].lengths * (x_lens >= least)
            if output.text is not None:
                found.append(encoded.logits(output.tap, output.text).values.log_softmax(-1))
            elif output.decoder is not None:
                found.append(memory_of(self.system, output.decoder, encoded.memory(output.decoder).values))
            found.append(lengths)
        return tuple(found)


def memory_of(system: System, decoder: str, hidden: Tensor) -> Tensor:
    """What a decoder's graph takes of its tap."""
    module = system.decoders[decoder]
    return module.project(hidden) if isinstance(module, Transducer) else hidden.clone()


class StepModule(nn.Module):
    """The next chunk of N streams."""

    def __init__(self, system: System, outputs: Sequence[Output]) -> None:
        super().__init__()
        self.system, self.outputs = system, [o for o in outputs if o.text or o.decoder]
        self.state: Any = system.initial_state(2)
        self.names = list(getattr(self.state, "_fields", [f"state_{i}" for i in range(len(self.state))]))

    def examples(self) -> list[Example]:
        window: int = self.system.encoder.window_frames  # pyright: ignore[reportAssignmentType]
        return [
            Example("x", torch.randn(2, window, self.system.input_size)),
            Example("x_lens", torch.tensor([window, window - 3])),
            *(Example(name, part) for name, part in zip(self.names, self.state, strict=True)),
        ]

    def output_names(self) -> list[str]:
        return [*(output.name for output in self.outputs), *(f"new_{name}" for name in self.names)]

    def forward(self, x: Tensor, x_lens: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found, new = self.chunk(x, x_lens, type(self.state)(*state))
        return (*found, *(part.clone() for part in new))

    def chunk(self, x: Tensor, x_lens: Tensor, state: Any) -> tuple[list[Tensor], Any]:
        """The outputs, and the state behind them."""
        system, encoder = self.system, self.system.encoder
        (hidden, _), new = encoder.step(system.normalisation(x, x_lens), x_lens, state)  # pyright: ignore
        found = []
        for output in self.outputs:
            if output.text is not None:
                found.append(system.heads[output.text](hidden).log_softmax(-1))
            elif output.decoder is not None:
                found.append(memory_of(system, output.decoder, hidden))
        return found, new


class DecoderModule(nn.Module):
    """A transducer's prediction network: the last label and a state."""

    def __init__(self, transducer: Transducer) -> None:
        super().__init__()
        self.transducer = transducer

    def examples(self) -> list[Example]:
        size = self.transducer.first_row().shape[1] - self.transducer.joint_dim
        return [Example("y", torch.tensor([1, 0, 1])), Example("state", torch.randn(3, size))]

    def output_names(self) -> list[str]:
        return ["decoder_out", "new_state"]

    def forward(self, y: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        joint_dim = self.transducer.joint_dim
        rows = self.transducer.follow(F.pad(state, (joint_dim, 0)), y)
        return rows[:, :joint_dim], rows[:, joint_dim:]


class JoinerModule(nn.Module):
    """A transducer's joint network, of projected frames and predictions."""

    def __init__(self, transducer: Transducer) -> None:
        super().__init__()
        self.transducer = transducer

    def examples(self) -> list[Example]:
        size = self.transducer.joint_dim
        return [Example("encoder_out", torch.randn(3, size)), Example("decoder_out", torch.randn(3, size))]

    def output_names(self) -> list[str]:
        return ["logit"]

    def forward(self, encoder_out: Tensor, decoder_out: Tensor) -> Tensor:
        return self.transducer.joint_projected(encoder_out, decoder_out)


class AttentionStartModule(nn.Module):
    """The encoder's frames as every layer of a decoder attends to them: (N, 2 layers, H, T, D / H)."""

    def __init__(self, decoder: AttentionDecoder, encoder_dim: int) -> None:
        super().__init__()
        self.decoder, self.encoder_dim = decoder, encoder_dim

    def examples(self) -> list[Example]:
        return [Example("memory", torch.randn(2, 9, self.encoder_dim), (0, 1))]

    def output_names(self) -> list[str]:
        return ["keys_values"]

    def forward(self, memory: Tensor) -> Tensor:
        pairs = [layer.memory(memory) for layer in self.decoder.layers]
        return torch.stack([part for pair in pairs for part in pair], 1)


class AttentionStepModule(nn.Module):
    """The next token of B hypotheses of N utterances each. `past` is (N, B, 2 layers, H, U, D / H)."""

    def __init__(self, decoder: AttentionDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def examples(self) -> list[Example]:
        layer = self.decoder.layers[0]
        layers, heads, size = len(self.decoder.layers), layer.heads, layer.query.out_features // layer.heads
        return [
            Example("tokens", torch.ones(2, 3, dtype=torch.long), (0, 1)),
            Example("keys_values", torch.randn(2, 2 * layers, heads, 9, size), (0, 3)),
            Example("memory_len", torch.tensor([9, 7])),
            Example("past", torch.randn(2, 3, 2 * layers, heads, 4, size), (0, 1, 4)),
        ]

    def output_names(self) -> list[str]:
        return ["log_probs", "new_past"]

    def forward(
        self, tokens: Tensor, keys_values: Tensor, memory_len: Tensor, past: Tensor
    ) -> tuple[Tensor, Tensor]:
        keys, values = keys_values[:, ::2].unbind(1), keys_values[:, 1::2].unbind(1)
        mask = attention_mask(memory_len, keys_values.shape[3], keys_values)
        positions = frame_positions(past.shape[4] + 1, self.decoder.embedding.weight)
        cache = Cache(past.chunk(len(self.decoder.layers), dim=2))
        log_probs, cache = self.decoder.step(Memory(keys, values, mask, positions), tokens, cache)
        return log_probs, torch.cat(cache.past, 2)


def decoder_modules(system: System, name: str) -> dict[str, nn.Module]:
    """The parts of a decoder, as `brctc.models.exported_decoders.PARTS` calls them."""
    decoder = system.decoders[name]
    match decoder:
        case Transducer():
            return {"decoder": DecoderModule(decoder), "joiner": JoinerModule(decoder)}
        case AttentionDecoder():
            dim = system.config.tap_dim(system.config.decoders[name].on)
            return {"start": AttentionStartModule(decoder, dim), "step": AttentionStepModule(decoder)}
        case _:
            kind = system.config.decoders[name].kind
            raise ValueError(f"a decoder of kind {kind} has no graphs: export the bundle")
