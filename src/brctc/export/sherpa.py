"""Graphs that stock sherpa-onnx runs from its own factories; what it cannot reproduce is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from brctc.data import FeatureConfig
from brctc.export.base import EXPORTS, ExportConfig
from brctc.export.graphs import Plan, write_graphs
from brctc.export.modules import EncoderModule, JoinerModule
from brctc.export.onnx_format import stream_sizes
from brctc.export.sherpa_modules import CONTEXT, ContextDecoderModule, PackedStepModule
from brctc.export.tokens import check_pieces
from brctc.models import Model, SystemConfig
from brctc.models.exported import Streaming
from brctc.models.exported_encoder import graph_outputs

FREE = {"num_bins", "sample_rate", "pitch_look_ahead_frames"}
"""Of the features: what sherpa-onnx can be told."""


@EXPORTS.register
class SherpaExport(ExportConfig):
    """A model for sherpa-onnx: CTC as zipformer_ctc, streaming CTC as zipformer2_ctc, or a transducer."""

    kind: Literal["sherpa"] = "sherpa"
    int8: bool = False
    """Weights of eight bits."""

    def write(self, model: Model, out: Path) -> Sequence[str]:
        return write_graphs(model, plan_for_sherpa(model), out, self.int8)


def plan_for_sherpa(model: Model) -> Plan:
    """The graphs of a model; a ValueError says why it cannot be."""
    check_features(model.features)
    check_pieces(model.tokenizer)
    system, config = model.system, without_attention(model.system.config)
    name = None if config.streaming else config.decoder_name("transducer")
    config = config.model_copy(update={"decoders": {n: d for n, d in config.decoders.items() if n == name}})
    if name is None and config.output not in config.heads:
        raise ValueError(
            f"sherpa-onnx has no family for it: the model says {config.output} by neither CTC nor an offline "
            "transducer"
        )
    if config.streaming:
        config = config.model_copy(update={"heads": {config.output: config.heads[config.output]}})
    outputs = graph_outputs(config, model.trim)
    if config.streaming:
        step = PackedStepModule(system, outputs)
        streaming = Streaming(sizes=stream_sizes(model), state=list(step.caches().values()))
        return Plan("sherpa", config, {"encoder": step}, streaming, 0, "OnlineRecognizer.from_zipformer2_ctc")
    modules = {"encoder": EncoderModule(system, outputs, model.trim)}
    if name is None:
        return Plan("sherpa", config, modules, factory="OfflineRecognizer.from_zipformer_ctc")
    transducer = system.decoders[name]
    modules[f"{name}.decoder"] = ContextDecoderModule(transducer)  # pyright: ignore[reportArgumentType]
    modules[f"{name}.joiner"] = JoinerModule(transducer)  # pyright: ignore[reportArgumentType]
    return Plan("sherpa", config, modules, context=CONTEXT, factory="OfflineRecognizer.from_transducer")


def without_attention(config: SystemConfig) -> SystemConfig:
    """sherpa-onnx knows no attention decoder of ours: the CTC beside it is exported alone."""
    kept = {name: decoder for name, decoder in config.decoders.items() if decoder.kind == "transducer"}
    return config.model_copy(update={"decoders": kept})


def check_features(features: FeatureConfig | None) -> None:
    """Refuses features that sherpa-onnx does not make."""
    if features is None:
        raise ValueError("sherpa-onnx hears audio, and the model's source is something else")
    usual = FeatureConfig()
    wrong = [
        f"{key} {float(getattr(features, key)):g} (it has {float(value):g})"
        for key, value in usual.model_dump().items()
        if key not in FREE and getattr(features, key) != value
    ]
    if wrong:
        hint = ""
        if features.high_hz != usual.high_hz:
            hint = "; models trained with the default high_hz fit"
        raise ValueError(f"sherpa-onnx cannot make the model's features: {', '.join(wrong)}{hint}")
