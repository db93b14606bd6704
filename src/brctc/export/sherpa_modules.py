"""Parts of a system in the shape of models that sherpa-onnx knows.

- A streaming step as a `zipformer2_ctc`: the state goes through the eight caches of a Zipformer of one layer,
  whose sizes its metadata is free to say.
- A transducer's prediction network as one without state: it runs over the last labels each time.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from brctc.export.modules import Example, StepModule
from brctc.models import State, System, Transducer
from brctc.models.exported_encoder import END, Output, StateTensor

CONTEXT = 64
"""Labels that the prediction network sees. An utterance with fewer is decoded exactly."""
EMBED_CHANNELS, EMBED_FRAMES = 128, 3


class PackedStepModule(StepModule):
    """`StepModule` with an Emformer's state in the caches of a Zipformer. There are no lengths: frames of END
    are behind the end of a stream, and sherpa-onnx never has one."""

    def __init__(self, system: System, outputs: Sequence[Output]) -> None:
        super().__init__(system, outputs)
        if not isinstance(self.state, State):
            kind = system.config.encoder.kind
            raise ValueError(f"the state of an encoder of kind {kind} does not fit into sherpa-onnx's caches")
        self.layers, self.left, width = self.state.left.shape[1:]
        self.dim, self.past = width // 2, self.state.convolution.shape[2]
        self.memory = self.state.memory.shape[2]
        caches = self.caches()
        self.names = list(caches)

    @property
    def context(self) -> int:
        return max(1, self.memory + self.left)

    def caches(self) -> dict[str, StateTensor]:
        """The caches of one stream, in sherpa-onnx's order; those that nothing needs pass through."""
        channels, bins = self.layers * self.dim, self.system.input_size
        kernel = max(1, self.past)
        return {
            "cached_key_0": StateTensor((self.context, 2 * channels), 1),
            "cached_nonlin_attn_0": StateTensor((1, self.context, 3 * channels // 4), 1),
            "cached_val1_0": StateTensor((self.context, 1), 1),
            "cached_val2_0": StateTensor((self.context, 1), 1),
            "cached_conv1_0": StateTensor((channels, kernel)),
            "cached_conv2_0": StateTensor((channels, kernel)),
            "embed_states": StateTensor((EMBED_CHANNELS, EMBED_FRAMES, ((bins - 1) // 2 - 1) // 2)),
            "processed_lens": StateTensor((), integer=True),
        }

    def metadata(self) -> dict[str, str]:
        """What sherpa-onnx reads of it."""
        channels, encoder = self.layers * self.dim, self.system.encoder
        found: dict[str, Any] = {
            "model_type": "zipformer2",
            "num_encoder_layers": 1,
            "num_heads": 1,
            "value_head_dims": 1,
            "encoder_dims": channels,
            "query_head_dims": 2 * channels,
            "cnn_module_kernels": 2 * self.past + 1 if self.past else 3,
            "left_context_len": self.context,
            "T": encoder.window_frames,
            "decode_chunk_len": encoder.hop_frames,
        }
        return {key: str(value) for key, value in found.items()}

    def examples(self) -> list[Example]:
        found = [Example("x", torch.randn(2, int(self.metadata()["T"]), self.system.input_size))]
        for name, (shape, axis, integer) in self.caches().items():
            whole = (*shape[:axis], 2, *shape[axis:])
            value = torch.zeros(whole, dtype=torch.long if integer else torch.float)
            found.append(Example(name, value, (axis,)))
        return found

    def forward(self, x: Tensor, caches: Sequence[Tensor]) -> tuple[Tensor, ...]:  # pyright: ignore
        keys, *passed, first, second, embed, chunks = caches
        x_lens = (x[:, :, 0] > END / 2).sum(1)
        streams = x.shape[0]
        # (context, N, L 2 D): the memory, then the left context
        rows = keys.unflatten(2, (self.layers, 2 * self.dim)).permute(1, 2, 0, 3)
        left, memory = rows[:, :, self.memory : self.memory + self.left], rows[:, :, : self.memory]
        convolution = first.unflatten(1, (self.layers, self.dim)).transpose(2, 3)[:, :, : self.past]
        found, new = self.chunk(x, x_lens, State(chunks, left, memory, convolution))
        if self.memory + self.left:
            rows = torch.cat([new.memory, new.left], 2)
            keys = rows.permute(2, 0, 1, 3).reshape(self.context, streams, -1)
        if self.past:
            first = new.convolution.transpose(2, 3).reshape(streams, -1, self.past)
        unused = (part.clone() for part in passed)
        return (*found, keys.clone(), *unused, first.clone(), second.clone(), embed.clone(), new.chunks)


class ContextDecoderModule(nn.Module):
    """The prediction of the last labels (N, CONTEXT); before the first one there is a blank, before it -1."""

    def __init__(self, transducer: Transducer) -> None:
        super().__init__()
        self.transducer = transducer

    def metadata(self) -> dict[str, str]:
        return {"vocab_size": str(self.transducer.classes), "context_size": str(CONTEXT)}

    def examples(self) -> list[Example]:
        labels = torch.full((3, CONTEXT), -1)
        labels[:, -1] = 0
        labels[1, -2:] = torch.tensor([0, 1])
        return [Example("y", labels)]

    def output_names(self) -> list[str]:
        return ["decoder_out"]

    def forward(self, y: Tensor) -> Tensor:
        transducer = self.transducer
        # sequences that begin with the blank, or the first label left, and end in what nobody looks at
        first = ((y[:, :-1] <= 0).sum(1) - (y[:, -1] > 0).long()).clamp(min=0)
        place = torch.arange(CONTEXT) + first[:, None]
        labels = y.gather(1, place.clamp(max=CONTEXT - 1)).clamp(min=0)
        output, _ = transducer.lstm(transducer.embedding(labels))
        last = (CONTEXT - 1 - first)[:, None, None].expand(-1, 1, output.shape[2])
        return transducer.project_prediction(output.gather(1, last)[:, 0])
