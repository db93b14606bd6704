"""Pictures of what models do: their spikes over the input, and how these come about."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brctc.data import Example, Padded, Prepared, WordTime, pad
from brctc.data.batch import source_length
from brctc.data.units import timed_units
from brctc.decode import Recognizer
from brctc.decode.methods import recipe_search
from brctc.decode.sources import prepared_source, read_source
from brctc.decode.times import spike_times
from brctc.evaluate import common_words, drift_latency
from brctc.models import AttentionDecoder, Encoded, Model
from brctc.report.runs import RunFiles
from brctc.report.spikes import (
    Clock,
    Spikes,
    draw_decoder_attention,
    draw_input,
    draw_spikes,
    draw_words,
    input_clock,
    said_spikes,
    source_layout,
    spoken_times,
    spoken_unit,
    target_spikes,
    token_labels,
)
from brctc.report.style import FAINT, INK, LINE, WRONG, colours, new_figure, styled, wrap_title

WIDTH = 10.5
"""Of a picture that spans the page, in inches."""
NARROW = 5.5
"""Of the narrowest, which still holds its title."""
MARGIN = 0.8
"""What is left and right of the axes, together."""
COLUMN = 0.075
"""Of a column of handwriting, at most."""
ROWS = 7
"""Moments of a training that are shown, at most."""


class Look(NamedTuple):
    """What a model makes of one utterance."""

    spikes: Spikes
    tokens: list[int]
    frames: list[int]
    """In which the tokens begin."""
    kept: int
    """Frames that trimming leaves; all of them if the model does not trim."""


@torch.inference_mode()
def look_at(model: Model, prepared: Prepared, index: int) -> Look:
    """The posterior where the model can be trimmed, online of the only one, and the trimming that follows."""
    text, encoded = _watch(model, prepared, index)
    logits = encoded.logits(model.watched_tap, text).values
    posterior = logits[0].float().softmax(-1).cpu().numpy()
    spikes, tokens, frames = said_spikes(posterior, model.tokenizers[text])
    return Look(spikes, tokens, frames, int(encoded.final.lengths[0]))


@torch.inference_mode()
def watched_logits(model: Model, prepared: Prepared, index: int) -> torch.Tensor:
    """(T, C): the logits of that posterior."""
    text, encoded = _watch(model, prepared, index)
    return encoded.logits(model.watched_tap, text).values[0].float().cpu()


def _watch(model: Model, prepared: Prepared, index: int) -> tuple[str, Encoded]:
    """The text that CTC predicts of an utterance, and what it predicts it from."""
    text = model.watched_text
    if text is None:
        raise ValueError("the model's encoder has no CTC head: it has no spikes")
    return text, model.system.encode(one_source(model, prepared, index).to(model.system.device), model.trim)


def has_spikes(model: Model) -> bool:
    """Whether a CTC head predicts a text on what the encoder gives."""
    return model.watched_text is not None


def one_source(model: Model, prepared: Prepared, index: int) -> Padded:
    """One example as the model takes it, as a batch."""
    return pad([read_source(prepared_source(prepared, index), model).values])


def example_indices(prepared: Prepared, count: int) -> list[int]:
    """A few utterances to look at, from short to long."""
    order = sorted(range(len(prepared)), key=lambda i: source_length(prepared.examples[i]))
    places = np.linspace(0, len(order) - 1, min(count, len(order)) + 2)[1:-1]
    return [order[round(place)] for place in places]


@styled
def plot_posteriors(runs: Sequence[RunFiles], prepared: Prepared, index: int) -> Figure:
    """The input, and below it each model's spikes, with what is cut off; of a text, also where the decoder
    looks for each token of its translation."""
    looks = [look_at(run.model, prepared, index) for run in runs]
    utterance = prepared.examples[index]
    words = [_timed_words(run, prepared, index) for run in runs]
    title = f"{_late(runs, words, utterance) or _early(runs, looks)} ({utterance.id})"
    width, input_height = _input_size(prepared, index)
    titles = [_said(run, look, utterance, width - MARGIN) for run, look in zip(runs, looks, strict=True)]
    lines = sum(text.count("\n") for text in titles)
    maps = [decoder_attention(run.model, prepared, index) for run in runs]
    strips = [_has_own_layout(run, runs[0], prepared, index) for run in runs]
    heights: list[float] = []
    for strip, found in zip(strips, maps, strict=True):
        heights += [0.9] * strip + [1.3] + ([] if found is None else [_map_height(found)])
    figure = new_figure(width, 1.2 + input_height + sum(heights) + LINE * lines, title)
    top, *panels = figure.subplots(len(heights) + 1, 1, sharex=True, height_ratios=[input_height, *heights])
    draw_input(top, prepared, index, runs[0].model)
    rest = iter(panels)
    for run, look, text, said_words, found, strip in zip(
        runs, looks, titles, words, maps, strips, strict=True
    ):
        if strip:
            draw_input(next(rest), prepared, index, run.model)
        panel, clock = next(rest), input_clock(prepared, run.model.system.config.encoder)
        shades = None
        if said_words is not None and utterance.word_times:
            times = spoken_times(run.model, utterance)
            draw_words(panel, times, clock)
            shades = _shades(run.model, look.tokens, said_words, times)
        draw_spikes(panel, look.spikes, clock, top.get_xlim()[1], width - MARGIN, shades=shades)
        _shade_cut(panel, look, clock)
        panel.set_title(text)
        panel.set_ylabel("probability")
        if found is not None:
            below, (weights, labels) = next(rest), found
            draw_decoder_attention(below, weights, labels, clock)
            below.set_xlim(top.get_xlim())
            below.set_ylabel("decoder")
    panels[-1].set_xlabel(input_clock(prepared).unit)
    return figure


@torch.inference_mode()
def decoder_attention(model: Model, prepared: Prepared, index: int) -> tuple[np.ndarray, list[str]] | None:
    """(U, T): what an attention decoder takes from each frame, at its place before trimming, for each token
    of a translation, the mean of its layers and heads; and the tokens. None for speech, or without such a
    decoder."""
    config = model.system.config
    name = config.decoder_name("attention")
    if prepared.storage.kind != "text" or name is None:
        return None
    source = read_source(prepared_source(prepared, index), model)
    search: dict[str, Any] = {"beam": 5} | recipe_search(model.description) | {"method": "attention"}
    (result,) = Recognizer(model).recognize([source], times=False, **search)
    encoded = model.system.encode(pad([source.values]).to(model.system.device), model.trim)
    memory = encoded.memory(name)
    decoder = model.system.decoders[name]
    assert isinstance(decoder, AttentionDecoder)
    tokens = torch.tensor([result.tokens], dtype=torch.long, device=model.system.device)
    weights = decoder.attention_weights(memory, tokens)[0].mean((0, 1))[:-1]  # but for the end
    before = encoded.taps[config.encoder.trims_at] if config.encoder.trims_at else encoded.final
    total, kept = int(before.lengths[0]), int(memory.lengths[0])
    placed = np.zeros((len(weights), total), np.float32)
    places = np.argsort(config.encoder.middle_order(total)[:kept])  # behind trimming, frames are in order
    placed[:, places] = weights.float().cpu().numpy()
    return placed, token_labels(result.tokens, model.tokenizer)


def _has_own_layout(run: RunFiles, first: RunFiles, prepared: Prepared, index: int) -> bool:
    """Whether the frames of its encoder are of other tokens than those of the first run's."""
    if prepared.storage.kind != "text":
        return False
    return source_layout(prepared, index, run.model) != source_layout(prepared, index, first.model)


def _map_height(found: tuple[np.ndarray, list[str]]) -> float:
    """Inches: a line for each token."""
    return max(0.6, 0.13 * len(found[1]))


def _said(run: RunFiles, look: Look, utterance: Example, width: float) -> str:
    """The title of a model's panel."""
    name = run.model.watched_text or run.model.system.config.output
    said, text = run.model.tokenizers[name].decode(look.tokens), utterance.texts[name]
    right = "" if said == text else f"; it should be: {text}"
    return wrap_title(f"{run.name}: {said or '(nothing)'}{right}", width)


def _timed_words(run: RunFiles, prepared: Prepared, index: int) -> tuple[WordTime, ...] | None:
    """The words that a model says, where its CTC says them; None if its spikes are elsewhere, or if it
    translates: then what it says is not what is heard."""
    texts = {run.model.watched_text, run.model.system.config.output}
    if run.model.description.get("spikes_moved") or texts != {"transcript"}:
        return None
    source = prepared.examples[index].id, prepared.features(index)
    (result,) = Recognizer(run.model).recognize([source], "ctc-greedy")
    frame_s = run.model.system.config.encoder.subsampling * prepared.frame_shift_s
    return None if result.word_times is None else spike_times(result.word_times, frame_s)


def _shades(
    model: Model, tokens: Sequence[int], words: Sequence[WordTime], reference: Sequence[WordTime]
) -> list[str]:
    """Each token in the colour of the word that it is part of, if that was said."""
    shades = colours(len(reference))
    right = {h: shades[r] for r, h in common_words(reference, words)}
    said = [model.tokenizer.decode(list(tokens[: k + 1])) for k in range(len(tokens))]
    ends = [len(timed_units(text, spoken_unit(model))) for text in said]
    return [right.get(end - 1, WRONG) for end in ends]


def _input_size(prepared: Prepared, index: int) -> tuple[float, float]:
    """Inches: of the figure's width and the input's height; a written character is as wide as high."""
    utterance = prepared.examples[index]
    if prepared.feature_config is not None or not utterance.word_times:
        return WIDTH, 1.0
    column = min(COLUMN, (WIDTH - MARGIN) / utterance.num_frames)
    written = [(time.end_s - time.start_s) / prepared.frame_shift_s for time in utterance.word_times]
    return max(NARROW, MARGIN + column * utterance.num_frames), 1.3 * column * float(np.median(written))


def _late(
    runs: Sequence[RunFiles], words: Sequence[Sequence[WordTime] | None], utterance: Example
) -> str | None:
    """The headline of online models, if the corpus knows when words are said."""
    parts = []
    for run, said in zip(runs, words, strict=True):
        if said is None or not utterance.word_times:
            return None
        drift = drift_latency([spoken_times(run.model, utterance)], [said]).drift
        parts.append(f"{run.name} {drift.mean_ms:.0f} ms" if drift.counted else f"{run.name} no word right")
    text = utterance.texts["transcript"]
    spaced = all(timed_units(text, spoken_unit(run.model)) == text.split() for run in runs)
    return f"From the start of a {'word' if spaced else 'character'} to its prediction: {', '.join(parts)}"


def _early(runs: Sequence[RunFiles], looks: Sequence[Look]) -> str:
    ends = [f"{run.name} after {_end(look):.0%}" for run, look in zip(runs, looks, strict=True)]
    return f"Last token: {', '.join(ends)} of the frames"


def _end(look: Look) -> float:
    """The share of the frames that have passed when the last token begins."""
    return (look.frames[-1] + 1) / len(look.spikes.blank) if look.frames else 0.0


def _shade_cut(panel: Axes, look: Look, clock: Clock) -> None:
    total = len(look.spikes.blank)
    if look.kept == total:
        return
    edges = clock.middles(total + 1) - clock.frame / 2
    start, end = edges[look.kept], edges[total]
    panel.axvspan(start, end, facecolor=FAINT, alpha=0.16, linewidth=0)
    panel.axvline(start, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    panel.text(
        (start + end) / 2, 0.5, f"cut off: {total - look.kept} of {total} frames", ha="center", va="center"
    )


def snapshot_utterances(runs: Sequence[RunFiles]) -> list[str]:
    """The ids that all runs have snapshots of; there is one at least."""
    stored = [run.snapshots[0].ids for run in runs]
    common = [name for name in stored[0] if all(name in others for others in stored)]
    if not common:
        raise ValueError("the runs have no snapshots of the same utterance")
    return common


@styled
def plot_evolution(runs: Sequence[RunFiles], prepared: Prepared, name: str | None = None) -> Figure:
    """Posteriors and gradients of one utterance at moments that all runs have stored.

    `prepared` is the development set, whose utterances are in the snapshots; the first by default.
    """
    common = snapshot_utterances(runs)
    name = name or common[0]
    if name not in common:
        raise ValueError(f"not all runs have a snapshot of {name}, but of {', '.join(common)}")
    moments = [{shot.step: shot for shot in run.snapshots} for run in runs]
    steps = sorted(set.intersection(*(set(shots) for shots in moments)))
    if not steps:
        found = "; ".join(f"{run.name}: {sorted(shots)}" for run, shots in zip(runs, moments, strict=True))
        raise ValueError(f"the runs have no snapshot at the same step: {found}")
    steps = [steps[i] for i in np.linspace(0, len(steps) - 1, min(ROWS, len(steps))).round().astype(int)]
    index = find_utterance(prepared, name)
    width = max(WIDTH, 5.2 * len(runs))
    figure = new_figure(
        width,
        1.3 + 1.05 * len(steps),
        f"How the spikes come about: {name} from step {steps[0]} to {steps[-1]}",
    )
    rows = figure.subplots(
        len(steps) + 1, 2 * len(runs), height_ratios=[0.7] + [1] * len(steps), squeeze=False
    )
    for column, panel in enumerate(rows[0]):
        draw_input(panel, prepared, index, runs[column // 2].model)
        run = runs[column // 2].name
        panel.set_title(f"{run}: " + ("pull of the loss" if column % 2 else "posterior"))
    end = rows[0, 0].get_xlim()[1]
    for row, step in enumerate(steps, 1):
        for i, (run, shots) in enumerate(zip(runs, moments, strict=True)):
            shot = shots[step]
            utterance = shot.ids.index(name)
            clock = input_clock(prepared, run.model.system.config.encoder)
            tokenizer = run.model.tokenizers[run.model.watched_text or run.model.system.config.output]
            targets = tokenizer.encode(shot.texts[utterance])
            posterior = shot.posteriors[utterance]
            for column, table in ((2 * i, posterior), (2 * i + 1, -shot.gradients[utterance])):
                panel = rows[row, column]
                spikes = target_spikes(table, posterior, targets, tokenizer)
                if run.recipe.model.streaming:
                    draw_words(panel, spoken_times(run.model, prepared.examples[index]), clock)
                draw_spikes(panel, spikes, clock, end, width / (2 * len(runs)) - 0.4, 6.5)
                if row < len(steps):
                    panel.tick_params(labelbottom=False)
                else:
                    panel.set_xlabel(clock.unit)
                if column:
                    panel.tick_params(labelleft=False)
            rows[row, 2 * i].set_title(f"λ = {shot.factor:.3g}" if shot.factor else "", fontsize=7.5, pad=1)
        rows[row, 0].set_ylabel(f"step {step:,}")
    return figure


def find_utterance(prepared: Prepared, name: str) -> int:
    """The index of an utterance of this id."""
    for index, utterance in enumerate(prepared.examples):
        if utterance.id == name:
            return index
    raise ValueError(f"{prepared.directory} ({prepared.split}) has no utterance {name}")
