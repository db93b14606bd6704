"""Encoder self-attention of every layer and head (Fig. 8)."""

from collections.abc import Sequence
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from brctc.data import Prepared
from brctc.data.batch import source_length
from brctc.models import ConformerConfig, Model
from brctc.report.pictures import Look, has_spikes, look_at, one_source
from brctc.report.runs import RunFiles
from brctc.report.spikes import input_clock, spoken_times
from brctc.report.style import bare, colours, new_figure, styled

WIDTH, SMALL, LARGE = 10.0, 1.05, 1.9
"""Inches: of all maps side by side, if they are neither too small nor too large for it."""
TRIED = 20
"""Utterances of which one is shown that all models read right, if there is one."""

TRANSCRIPT = "transcript"  # what word times are of

Span = tuple[int, int]


def attention_index(runs: Sequence[RunFiles], prepared: Prepared) -> int:
    """An utterance of medium length; if possible, one that all models read right."""
    frames = [source_length(utterance) for utterance in prepared.examples]
    medium = median(frames)
    order = sorted(range(len(frames)), key=lambda i: abs(frames[i] - medium))
    for index in order[:TRIED]:
        if all(_reads_right(run.model, prepared, index) for run in runs):
            return index
    return order[0]


def _reads_right(model: Model, prepared: Prepared, index: int) -> bool:
    text = model.watched_text
    assert text is not None, "has_spikes has seen to it"
    said = model.tokenizers[text].decode(look_at(model, prepared, index).tokens)
    return said == prepared.examples[index].texts[text]


@styled
def plot_attention(runs: Sequence[RunFiles], prepared: Prepared, index: int) -> Figure:
    """Models side by side, layers below one another; boxes mark what each spike has to fetch."""
    looks = [look_at(run.model, prepared, index) for run in runs]
    systems = [run.model.system for run in runs]
    weights = [
        system.encoder_attention(one_source(run.model, prepared, index).to(system.device), run.model.trim)
        for system, run in zip(systems, runs, strict=True)
    ]
    maps = [[layer.float().cpu().numpy() for layer in layers] for layers in weights]
    sources = [_sources(run, look, prepared, index) for run, look in zip(runs, looks, strict=True)]
    halves = [_first_layers(run, layers) for run, layers in zip(runs, maps, strict=True)]
    shares = [
        [[_share(head, look.frames, spans) for head in layer] for layer in layers[:half]] if spans else None
        for layers, look, spans, half in zip(maps, looks, sources, halves, strict=True)
    ]
    heads = [len(layers[0]) for layers in maps]
    depth = max(map(len, maps))
    size = min(max(WIDTH / sum(heads), SMALL), LARGE)
    figure = new_figure(
        size * sum(heads) + 0.5 * len(runs),
        (size + 0.1) * depth + 1,
        f"{_headline(runs, shares, sources, maps)} ({prepared.examples[index].id})",
    )
    parts = np.atleast_1d(np.array(figure.subfigures(1, len(runs), width_ratios=heads, wspace=0.03)))
    for i, (part, run, layers) in enumerate(zip(parts, runs, maps, strict=True)):
        part.suptitle(run.name, x=0.02, ha="left", fontsize=10)
        panels = part.subplots(depth, heads[i], squeeze=False)
        for layer, row in enumerate(panels):
            for head, panel in enumerate(row):
                if layer >= len(layers):
                    panel.set_visible(False)
                    continue
                first = layer < halves[i]
                _draw_map(panel, layers[layer][head], looks[i], sources[i] if first else None)
                share = shares[i]
                number = f": {share[layer][head]:.0%}" if share and first else ""
                panel.set_title(f"head {head + 1}{number}", fontsize=8)
                panel.tick_params(labelbottom=layer == len(layers) - 1, labelleft=head == 0)
            if layer < len(layers):
                place = "1st half" if layer < halves[i] else "2nd half"
                row[0].set_ylabel(f"layer {layer + 1} ({place})\noutput frame", fontsize=8)
        for panel in panels[len(layers) - 1]:
            panel.set_xlabel("frame looked at", fontsize=8)
    return figure


def has_maps(model: Model) -> bool:
    """Whether there are spikes, and its encoder shows what they attend to: all layers have the same frames at
    first, in the same order."""
    encoder = model.system.config.encoder
    in_order = encoder.middle_order(100) == list(range(100))
    same_frames = in_order and encoder.up_sampling_factor == 1 and not encoder.streaming
    return has_spikes(model) and same_frames and hasattr(model.system.encoder, "attention_weights")


def _first_layers(run: RunFiles, layers: Sequence[np.ndarray]) -> int:
    """Those before frames are cut off: all, if there are no two halves."""
    encoder = run.model.system.config.encoder
    return encoder.first_layers if isinstance(encoder, ConformerConfig) else len(layers)


def _sources(run: RunFiles, look: Look, prepared: Prepared, index: int) -> list[Span] | None:
    """The encoder frames (first, last + 1) in which each token of a right output really is, if known."""
    utterance = prepared.examples[index]
    times = spoken_times(run.model, utterance)
    said = run.model.tokenizers[run.model.watched_text or TRANSCRIPT].decode(look.tokens)
    if said != utterance.texts[TRANSCRIPT] or len(times) != len(look.tokens):
        return None
    clock = input_clock(prepared, run.model.system.config.encoder)
    total = len(look.spikes.blank)
    middles = clock.middles(total) / clock.per_second
    spans = []
    for time in times:
        first = min(int(np.searchsorted(middles, time.start_s)), total - 1)
        spans.append((first, max(int(np.searchsorted(middles, time.end_s)), first + 1)))
    return spans


def _share(weights: np.ndarray, frames: Sequence[int], spans: Sequence[Span]) -> float:
    """How much of the spikes' attention is on their own tokens; (T, T) weights."""
    found = [weights[frame, first:last].sum() for frame, (first, last) in zip(frames, spans, strict=True)]
    return float(np.mean(found))


def _headline(
    runs: Sequence[RunFiles],
    shares: Sequence[list[list[float]] | None],
    sources: Sequence[list[Span] | None],
    maps: Sequence[list[np.ndarray]],
) -> str:
    parts = []
    chance = 0.0
    for run, share, spans, layers in zip(runs, shares, sources, maps, strict=True):
        if share and spans:
            best, layer = max((max(row), layer) for layer, row in enumerate(share, 1))
            chance = float(np.mean([last - first for first, last in spans])) / layers[0].shape[1]
            parts.append(f"{run.name} {best:.0%} in layer {layer}")
    if not parts:
        return "Where each frame looks"
    return f"How much a spike looks at its own token, at most: {', '.join(parts)}; by chance {chance:.0%}"


def _draw_map(panel: Axes, weights: np.ndarray, look: Look, spans: list[Span] | None) -> None:
    frames = len(weights)
    bare(panel)
    panel.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    panel.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    panel.imshow(
        weights,
        cmap="magma",
        norm=PowerNorm(0.5, 0, max(float(np.quantile(weights, 0.998)), 1e-6)),
        interpolation="none",
        extent=(0, frames, frames, 0),
    )
    if look.kept < frames:
        panel.axhline(look.kept, color="white", linewidth=0.8, linestyle=(0, (3, 2)))
    high = max(1.0, frames / 25)
    for k, (frame, shade) in enumerate(zip(look.frames, colours(len(look.frames)), strict=True)):
        if frame < frames:
            panel.plot(-0.03 * frames, frame + 0.5, ">", color=shade, markersize=3.5, clip_on=False)
        if spans:
            first, last = spans[k]
            box = (first, frame + 0.5 - high / 2)
            panel.add_patch(
                Rectangle(box, last - first, high, fill=False, edgecolor=shade, linewidth=0.9, clip_on=False)
            )
