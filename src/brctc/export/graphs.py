"""The graphs of a system: written, compared with it, and described. What all formats of ONNX share."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from brctc.export.compare import BAR, Found, batches, compare_encoder, time_together
from brctc.export.convert import to_onnx
from brctc.export.int8 import quantise
from brctc.export.tokens import tokens_text
from brctc.extras import check_extra
from brctc.files import file_digest, write_bytes, write_json, write_text
from brctc.models import Model, SystemConfig
from brctc.models.exported import EXPORT, Exported, ExportedSystem, Streaming
from brctc.models.exported_encoder import Output, graph_outputs

TOLD = ("spikes_moved", "corpus", "stage", "steps", "seconds", "risks")
"""What a model's description tells others; the rest is about the machine that it was trained on."""
EXTRA = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Plan:
    """The graphs that a system becomes."""

    made_for: str
    config: SystemConfig
    """The system without what is not exported."""
    modules: Mapping[str, nn.Module]
    """By the names of `Exported.graphs`."""
    streaming: Streaming | None = None
    context: int = 0
    """As `Exported.context`."""
    factory: str | None = None
    """Of sherpa-onnx."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Of every graph."""

    def file(self, graph: str) -> str:
        """Where a graph is written."""
        return "model.onnx" if len(self.modules) == 1 else f"{graph.replace('.', '-')}.onnx"


def write_graphs(model: Model, plan: Plan, out: Path, int8: bool) -> list[str]:
    """Writes all files of an exported model, and says how it compares. A difference that is too large is
    a ValueError."""
    check_extra(EXTRA, "export")
    outputs = graph_outputs(plan.config, model.trim)
    for name, module in plan.modules.items():
        own = getattr(module, "metadata", dict)()
        write_bytes(out / plan.file(name), to_onnx(module, {**plan.metadata, **own}))
    graphs = {name: plan.file(name) for name in plan.modules}
    about = _describe(model, plan, graphs)
    exported = ExportedSystem(about, out).eval()
    check = _compare(model, exported, outputs)
    lines = _tell(check)
    worst = max(found.difference for found in check)
    if worst > BAR:
        raise ValueError("\n  ".join(["ONNX Runtime computes something else:", *lines]))
    report: dict[str, Any] = {"bar": BAR, "worst": worst, "batches": [found._asdict() for found in check]}
    systems, names = [model.system, exported], ["torch", "ONNX Runtime"]
    if int8:
        graphs = {name: file.replace(".onnx", ".int8.onnx") for name, file in graphs.items()}
        for name, file in graphs.items():
            quantise(out / plan.file(name), out / file)
        about = about.model_copy(update={"graphs": graphs, "sherpa": _sherpa(plan, model, graphs)})
        quantised = ExportedSystem(about, out).eval()
        systems, names = [*systems, quantised], [*names, "int8"]
        found, told = _compare_int8(model, quantised, outputs, plan, graphs, out)
        report["int8"], lines = found, [*lines, told]
    times = time_together(systems)
    report["milliseconds"] = dict(zip(names, times, strict=True))
    lines.append(_tell_times(model, dict(zip(names, times, strict=True))))
    if int8:
        for name in plan.modules:
            (out / plan.file(name)).unlink()
    _write_tokens(model, out)
    files = {path.name: file_digest(path) for path in sorted(out.iterdir())}
    write_json(
        out / EXPORT, about.model_copy(update={"files": files, "check": report}).model_dump(mode="json")
    )
    return lines


def _describe(model: Model, plan: Plan, graphs: dict[str, str]) -> Exported:
    known, recipe = model.description, model.description.get("recipe", {})
    told = {key: known[key] for key in TOLD if key in known}
    shared = {key: recipe[key] for key in ("decode", "metrics") if key in recipe}
    features = model.features
    return Exported(
        made_for=plan.made_for,
        files={},
        graphs=graphs,
        sherpa=_sherpa(plan, model, graphs),
        input_size=model.system.input_size,
        vocab_sizes=model.system.vocab_sizes,
        system=plan.config,
        features=features,
        trim=model.trim,
        streaming=plan.streaming,
        context=plan.context,
        tail_s=_tail_s(model, plan),
        parameters=model.system.num_parameters,
        tokenizers={text: tokenizer.to_dict() for text, tokenizer in model.tokenizers.items()},
        description={**told, "recipe": shared} if shared else told,
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("brctc", "torch", *EXTRA)},
        },
        check={},
    )


def _tail_s(model: Model, plan: Plan) -> float | None:
    if plan.streaming is None or model.features is None:
        return None
    return round((plan.streaming.sizes.window_frames + 1) * model.features.frame_shift_s, 6)


def _sherpa(plan: Plan, model: Model, graphs: Mapping[str, str]) -> dict[str, Any] | None:
    """How sherpa-onnx is called: the name of a factory, and its arguments."""
    if plan.factory is None or model.features is None:
        return None
    names = [name.rpartition(".")[2] for name in graphs] if len(graphs) > 1 else ["model"]
    files = dict(zip(names, graphs.values(), strict=True))
    sizes = {"sample_rate": model.features.sample_rate, "feature_dim": model.features.num_bins}
    return {"factory": plan.factory, "arguments": {**files, "tokens": "tokens.txt", **sizes}}


def _compare(model: Model, exported: ExportedSystem, outputs: Sequence[Output]) -> list[Found]:
    return [compare_encoder(model, exported, outputs, lengths) for lengths in batches(model.system)]


def _tell(check: Sequence[Found]) -> list[str]:
    lines = []
    for lengths, difference, _ in check:
        what = f"{lengths[0]} frames"
        if len(lengths) > 1:
            what = f"{len(lengths)} utterances of {min(lengths)} to {max(lengths)} frames"
        told = f"{difference:.1e}" if difference < torch.inf else "another number of frames, or no number"
        lines.append(f"{what}: {told}")
    return lines


def _compare_int8(
    model: Model,
    quantised: ExportedSystem,
    outputs: Sequence[Output],
    plan: Plan,
    graphs: Mapping[str, str],
    out: Path,
) -> tuple[dict[str, Any], str]:
    """Agreement and sizes, and how to say it."""
    check = _compare(model, quantised, outputs)
    frames = [sum(found.lengths) for found in check]
    agreement = sum(found.agreement * count for found, count in zip(check, frames, strict=True)) / sum(frames)
    before, after = (
        sum((out / file).stat().st_size for file in files)
        for files in ([plan.file(name) for name in graphs], graphs.values())
    )
    found = {"agreement": agreement, "bytes": after, "bytes_before": before}
    told = f"int8: {after / 1e6:.1f} MB of {before / 1e6:.1f} ({after / before:.0%})"
    return found, f"{told}, the same best class in {agreement:.1%} of random frames"


def _tell_times(model: Model, times: Mapping[str, float]) -> str:
    what = "a step of one stream" if model.system.config.streaming else "an utterance of 300 frames"
    torch_ms = times["torch"]
    told = [f"{name} {ms:.1f} ms ({torch_ms / ms:.1f}x)" for name, ms in times.items() if name != "torch"]
    return f"{what}, one thread: torch {torch_ms:.1f} ms, {', '.join(told)}"


def _write_tokens(model: Model, out: Path) -> None:
    """One file for each text; that of decoding has the plain name."""
    output = model.system.config.output
    for text, tokenizer in model.tokenizers.items():
        name = "tokens.txt" if text == output else f"tokens-{text}.txt"
        write_text(out / name, tokens_text(tokenizer))
