"""Graphs of ONNX: what ONNX Runtime runs anywhere, and `brctc decode`, `stream` and `evaluate` as well."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from brctc.export.base import EXPORTS, ExportConfig
from brctc.export.graphs import Plan, write_graphs
from brctc.export.modules import EncoderModule, StepModule, decoder_modules
from brctc.models import Model, StreamingEncoder
from brctc.models.exported import Streaming
from brctc.models.exported_encoder import StateTensor, StreamSizes, graph_outputs


@EXPORTS.register
class OnnxExport(ExportConfig):
    """All graphs of a system: normalisation and trimming inside, any batch, any length."""

    kind: Literal["onnx"] = "onnx"
    int8: bool = False
    """Weights of eight bits."""

    def write(self, model: Model, out: Path) -> Sequence[str]:
        return write_graphs(model, plan_for_onnx(model), out, self.int8)


def plan_for_onnx(model: Model, decoders: bool = True) -> Plan:
    """The graphs of a model, with those of its decoders or without."""
    system, config = model.system, model.system.config
    if not decoders:
        config = config.model_copy(update={"decoders": {}})
    outputs, streaming = graph_outputs(config, model.trim), None
    if config.streaming:
        encoder = StepModule(system, outputs)
        state = [StateTensor(tuple(p.shape[1:]), 0, not p.is_floating_point()) for p in encoder.state]
        streaming = Streaming(sizes=stream_sizes(model), state=state)
    else:
        encoder = EncoderModule(system, outputs, model.trim)
    modules = {"encoder": encoder}
    for name in config.decoders:
        modules |= {f"{name}.{part}": module for part, module in decoder_modules(system, name).items()}
    return Plan("onnx", config, modules, streaming)


def stream_sizes(model: Model) -> StreamSizes:
    """Of a streaming model."""
    encoder = model.system.encoder
    assert isinstance(encoder, StreamingEncoder), "its config says so"
    return StreamSizes(
        encoder.chunk_frames, encoder.right_context_frames, encoder.hop_frames, encoder.window_frames
    )
