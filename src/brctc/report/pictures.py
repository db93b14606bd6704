"""Pictures of what models do: their spikes over the input, and how these come about."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brctc.data import Example, Padded, Prepared, WordTime
from brctc.decode import Recognizer
from brctc.decode.times import spike_times
from brctc.evaluate import common_words, drift_latency
from brctc.models import Model
from brctc.report.runs import RunFiles
from brctc.report.spikes import (
    Clock,
    Spikes,
    draw_input,
    draw_spikes,
    draw_words,
    input_clock,
    said_spikes,
    target_spikes,
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
    if not has_spikes(model):
        raise ValueError(f"the model has no CTC head for {model.system.config.output}: it has no spikes")
    encoded = model.system.encode(one_source(prepared, index).to(model.system.device), model.trim)
    logits = encoded.logits(model.watched_tap, model.system.config.output).values
    posterior = logits[0].float().softmax(-1).cpu().numpy()
    spikes, tokens, frames = said_spikes(posterior, model.tokenizer)
    return Look(spikes, tokens, frames, int(encoded.final.lengths[0]))


def has_spikes(model: Model) -> bool:
    """Whether a CTC head predicts what the model gives out."""
    return model.system.config.output in model.system.config.heads


def one_source(prepared: Prepared, index: int) -> Padded:
    """The features of one utterance, as a batch."""
    features = torch.from_numpy(prepared.features(index))[None]
    return Padded(features, torch.tensor([features.shape[1]]))


def example_indices(prepared: Prepared, count: int) -> list[int]:
    """A few utterances to look at, from short to long."""
    order = sorted(range(len(prepared)), key=lambda i: prepared.examples[i].num_frames)
    places = np.linspace(0, len(order) - 1, min(count, len(order)) + 2)[1:-1]
    return [order[round(place)] for place in places]


@styled
def plot_posteriors(runs: Sequence[RunFiles], prepared: Prepared, index: int) -> Figure:
    """The input, and below it each model's spikes, with what is cut off."""
    looks = [look_at(run.model, prepared, index) for run in runs]
    utterance = prepared.examples[index]
    words = [_timed_words(run, prepared, index) for run in runs]
    title = f"{_late(runs, words, utterance) or _early(runs, looks)} ({utterance.id})"
    width, input_height = _input_size(prepared, index)
    titles = [_said(run, look, utterance, width - MARGIN) for run, look in zip(runs, looks, strict=True)]
    lines = sum(text.count("\n") for text in titles)
    figure = new_figure(width, 1.2 + input_height + 1.3 * len(runs) + LINE * lines, title)
    ratios = [input_height, *([1.3] * len(runs))]
    top, *panels = figure.subplots(len(runs) + 1, 1, sharex=True, height_ratios=ratios)
    draw_input(top, prepared, index)
    for panel, run, look, text, said_words in zip(panels, runs, looks, titles, words, strict=True):
        clock = input_clock(prepared, run.model.system.config.encoder.subsampling)
        panel.set_xlabel(clock.unit if panel is panels[-1] else "")
        shades = None
        if said_words is not None and utterance.word_times:
            draw_words(panel, utterance.word_times, clock)
            shades = _shades(run.model, look.tokens, said_words, utterance.word_times)
        draw_spikes(panel, look.spikes, clock, top.get_xlim()[1], width - MARGIN, shades=shades)
        _shade_cut(panel, look, clock)
        panel.set_title(text)
        panel.set_ylabel("probability")
    return figure


def _said(run: RunFiles, look: Look, utterance: Example, width: float) -> str:
    """The title of a model's panel."""
    said = run.model.tokenizer.decode(look.tokens)
    text = utterance.texts[run.model.system.config.output]
    right = "" if said == text else f"; it should be: {text}"
    return wrap_title(f"{run.name}: {said or '(nothing)'}{right}", width)


def _timed_words(run: RunFiles, prepared: Prepared, index: int) -> tuple[WordTime, ...] | None:
    """The words that an online model says, where it says them; of others the spikes may be elsewhere."""
    if not run.recipe.model.streaming:
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
    ends = [len(model.tokenizer.decode(list(tokens[: k + 1])).split()) for k in range(len(tokens))]
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
        drift = drift_latency([utterance.word_times], [said]).drift
        parts.append(f"{run.name} {drift.mean_ms:.0f} ms" if drift.counted else f"{run.name} no word right")
    return f"From the start of a word to its prediction: {', '.join(parts)}"


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
        draw_input(panel, prepared, index)
        run = runs[column // 2].name
        panel.set_title(f"{run}: " + ("pull of the loss" if column % 2 else "posterior"))
    end = rows[0, 0].get_xlim()[1]
    for row, step in enumerate(steps, 1):
        for i, (run, shots) in enumerate(zip(runs, moments, strict=True)):
            shot = shots[step]
            utterance = shot.ids.index(name)
            clock = input_clock(prepared, run.model.system.config.encoder.subsampling)
            targets = run.model.tokenizer.encode(shot.texts[utterance])
            posterior = shot.posteriors[utterance]
            for column, table in ((2 * i, posterior), (2 * i + 1, -shot.gradients[utterance])):
                panel = rows[row, column]
                spikes = target_spikes(table, posterior, targets, run.model.tokenizer)
                if run.recipe.model.streaming:
                    draw_words(panel, prepared.examples[index].word_times or (), clock)
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
