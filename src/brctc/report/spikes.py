"""CTC posteriors (or gradients) as coloured spikes, each labelled with its token.

Axes: T encoder frames, C classes, K tokens that the spikes say, one after the other.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes

from brctc.align import best_path
from brctc.data import Example, Prepared, Tokenizer, WordTime
from brctc.data.batch import SOURCE
from brctc.data.units import Unit, unit_of
from brctc.decode import ctc_greedy
from brctc.evaluate.online import reference_times
from brctc.models import EncoderConfig, Model
from brctc.models.subsampling import WINDOW
from brctc.report.style import FAINT, INK, bare, colours

SEEN = 0.004  # less than this is not drawn
LABELLED = 0.15  # a spike that is lower gets no label
TURNED = 40  # more tokens than these are written upright
LABEL_BAND = 1.32  # the top of the axis: above 1 there is room for labels


class Spikes(NamedTuple):
    """A table (T, C) of shares, parted by the tokens that it says."""

    labels: list[str]
    """(K)"""
    heights: np.ndarray
    """(K, T): where a class is said twice, each frame belongs to the nearer of its spikes."""
    blank: np.ndarray
    """(T)"""
    other: np.ndarray
    """(T): classes that are not among the tokens."""


class Clock(NamedTuple):
    """Where encoder frames lie on the input's axis."""

    unit: str
    per_second: float
    """Units in a second."""
    frame: float
    """How much of the axis an encoder frame covers."""
    first: float
    """The middle of the first encoder frame."""

    def middles(self, count: int) -> np.ndarray:
        """Of so many frames."""
        return self.first + self.frame * np.arange(count)


def input_clock(prepared: Prepared, encoder: EncoderConfig | None = None) -> Clock:
    """Of an encoder's frames, or of its input: seconds for audio, columns for what has no sound, tokens."""
    subsampling = 1 if encoder is None else encoder.subsampling
    if prepared.storage.kind == "text":
        frame = 1 if encoder is None else 1 / encoder.up_sampling_factor
        return Clock("token of the source", 1.0, frame, frame / 2)
    heard = prepared.feature_config is not None
    step = prepared.frame_shift_s if heard else 1.0
    first = (WINDOW / 2 if subsampling > 1 else 0.5) * step
    return Clock("time [s]" if heard else "column", step / prepared.frame_shift_s, subsampling * step, first)


def said_spikes(posterior: np.ndarray, tokenizer: Tokenizer) -> tuple[Spikes, list[int], list[int]]:
    """The spikes of what a posterior says when each frame's best class is taken; the tokens, their frames."""
    logits = torch.from_numpy(posterior).clamp(min=1e-30).log()[None]
    (said,) = ctc_greedy(logits, torch.tensor([len(posterior)]))
    frames = said.frames or []
    return part(posterior, said.tokens, frames, tokenizer), said.tokens, frames


def target_spikes(
    table: np.ndarray, posterior: np.ndarray, targets: list[int], tokenizer: Tokenizer
) -> Spikes:
    """A table parted by a target's tokens, which lie where the posterior's best path has them."""
    log_probs = torch.from_numpy(posterior).clamp(min=1e-7).log()[:, None]  # float16 was stored
    found = best_path(log_probs, torch.tensor([targets]), [len(posterior)], [len(targets)])
    middle = (found.start[0] + found.end[0]) // 2
    return part(table, targets, middle.tolist(), tokenizer)


def part(table: np.ndarray, tokens: Sequence[int], frames: Sequence[int], tokenizer: Tokenizer) -> Spikes:
    """Gives every frame of a class to the token of that class whose own frame is nearest."""
    time = np.arange(len(table))
    heights = np.zeros((len(tokens), len(table)), np.float32)
    for token in set(tokens):
        members = [k for k, other in enumerate(tokens) if other == token]
        distance = np.abs(time[:, None] - np.array([frames[k] for k in members]))
        nearest = distance.argmin(1)
        for row, k in enumerate(members):
            heights[k] = np.where(nearest == row, table[:, token], 0)
    other = np.clip(table[:, 1:].sum(1) - heights.sum(0), 0, None)
    return Spikes(token_labels(tokens, tokenizer), heights, table[:, 0], other)


def token_labels(tokens: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Tokens as a picture shows them: no mark of a word's beginning, and a sign for what is only a space."""
    return [tokenizer.pieces[token].replace("▁", " ").strip() or "␣" for token in tokens]


def spoken_unit(model: Model) -> Unit:
    """What times are counted in for a model, as its errors are."""
    return unit_of(model.tokenizers.get("transcript", model.tokenizer).kind)


def spoken_times(model: Model, utterance: Example) -> Sequence[WordTime]:
    """When the words of an utterance are said, or its characters where a model's errors are of them."""
    return reference_times(utterance, spoken_unit(model)) or ()


def draw_words(axis: Axes, times: Sequence[WordTime], clock: Clock) -> None:
    """Bands where the words really are, behind the spikes, in the colours of `draw_input`."""
    for time, shade in zip(times, colours(len(times)), strict=True):
        start, end = time.start_s * clock.per_second, time.end_s * clock.per_second
        axis.axvspan(start, end, ymax=1 / LABEL_BAND, facecolor=shade, alpha=0.2, linewidth=0)


def draw_spikes(
    axis: Axes,
    spikes: Spikes,
    clock: Clock,
    end: float,
    width: float,
    font_size: float = 8.5,
    shades: Sequence[str] | None = None,
) -> None:
    """Over an input that ends at `end`; the axis has so many inches, roughly: labels need room.

    The spikes' colours are those of the words, if there is one word for each.
    """
    x = clock.middles(len(spikes.blank))
    axis.set_xlim(0, end)
    axis.set_ylim(0, LABEL_BAND)
    axis.set_yticks([0, 0.5, 1])
    axis.stairs(spikes.blank, _edges(x, np.arange(len(x))), baseline=None, color=FAINT, linewidth=0.9)
    _fill(axis, x, spikes.other, FAINT)
    shades = shades or colours(len(spikes.labels))
    for heights, shade in zip(spikes.heights, shades, strict=True):
        _fill(axis, x, heights, shade)
    peaks = spikes.heights.argmax(1) if len(spikes.labels) else np.zeros(0, int)
    tall = [k for k, peak in enumerate(peaks) if spikes.heights[k, peak] >= LABELLED]
    places = [float(x[peaks[k]]) for k in tall]
    labels = [spikes.labels[k] for k in tall]
    spread = spread_labels(places, labels, font_size, end / (width * 72), end)
    for k, place, label, middle in zip(tall, places, labels, spread, strict=True):
        top = float(spikes.heights[k, peaks[k]])
        axis.plot([place, middle], [top + 0.01, 1.09], color=shades[k], linewidth=0.6, alpha=0.8)
        axis.text(middle, 1.1, label, color=INK, fontsize=font_size, ha="center", va="bottom")


def spread_labels(
    places: Sequence[float],
    labels: Sequence[str],
    font_size: float,
    per_point: float,
    end: float,
) -> list[float]:
    """Where labels go so that none covers another: at their places, or pushed aside, between 0 and `end`."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    widths = [(0.62 * len(label) * font_size + 3) * per_point for label in labels]
    middles = list(places)
    edge = 0.0
    for i in order:
        middles[i] = max(places[i], edge + widths[i] / 2)
        edge = middles[i] + widths[i] / 2
    edge = end
    for i in reversed(order):
        middles[i] = min(middles[i], edge - widths[i] / 2)
        edge = middles[i] - widths[i] / 2
    return middles


def draw_input(axis: Axes, prepared: Prepared, index: int, model: Model) -> None:
    """The handwritten line, log-mel features or tokens; below, where each word is, in the spikes' colours."""
    if prepared.storage.kind == "text":
        draw_tokens(axis, *source_layout(prepared, index, model))
        return
    features, utterance = prepared.features(index).T, prepared.examples[index]
    bare(axis)
    axis.set_yticks([])
    axis.tick_params(bottom=False, labelbottom=False)
    clock = input_clock(prepared)
    extent = (0, features.shape[1] * clock.frame, 0, 1)
    if prepared.feature_config is None:
        page = np.pad(features, ((1, 1), (0, 0)))  # ink would touch the edges
        axis.imshow(page, aspect="auto", extent=extent, interpolation="bilinear", cmap="Greys", vmin=0)
    else:
        axis.imshow(features[::-1], aspect="auto", extent=extent, interpolation="bilinear", cmap="magma")
    axis.set_xlim(0, extent[1])
    axis.set_ylim(-0.24, 1)
    times = spoken_times(model, utterance)
    for time, shade in zip(times, colours(len(times)), strict=True):
        start, end = time.start_s * clock.per_second, time.end_s * clock.per_second
        axis.barh(-0.15, end - start, 0.12, left=start, color=shade)


def source_layout(prepared: Prepared, index: int, model: Model) -> tuple[list[str], list[int]]:
    """The tokens of a source text, and which of them each of the encoder's frames is of."""
    tokenizer = model.tokenizers[SOURCE]
    labels = token_labels(tokenizer.encode(prepared.examples[index].texts[SOURCE]), tokenizer)
    return labels, model.system.config.encoder.source_tokens(len(labels))


def draw_tokens(axis: Axes, labels: Sequence[str], owners: Sequence[int]) -> None:
    """A text over the frames that come of it, each labelled with the token that it is of; in all, the axis
    has a unit for each token."""
    bare(axis)
    axis.set_yticks([])
    axis.tick_params(bottom=False, labelbottom=False)
    axis.set_xlim(0, len(labels))
    axis.set_ylim(0, 1)
    spans = [list(group) for _, group in groupby(range(len(owners)), key=owners.__getitem__)]
    for place, span in enumerate(spans):
        left, right = (frame * len(labels) / len(owners) for frame in (span[0], span[-1] + 1))
        axis.axvspan(left, right, facecolor=FAINT, alpha=0.25 if place % 2 else 0.1, linewidth=0)
        size, turn = (8, 60) if len(spans) <= TURNED else (6, 90)
        middle = (left + right) / 2
        label = labels[owners[span[0]]]
        axis.text(middle, 0.5, label, color=INK, fontsize=size, rotation=turn, ha="center", va="center")


def draw_decoder_attention(axis: Axes, weights: np.ndarray, labels: Sequence[str], clock: Clock) -> None:
    """(U, T) attention of a decoder: a row for each token that it says, over the frames that it sees."""
    edges = clock.middles(weights.shape[1] + 1) - clock.frame / 2
    extent = (edges[0], edges[-1], len(weights), 0)
    axis.imshow(weights, aspect="auto", extent=extent, interpolation="none", cmap="Purples", vmin=0)
    axis.set_yticks(np.arange(len(labels)) + 0.5, labels, fontsize=7)
    axis.grid(visible=False)


def _fill(axis: Axes, x: np.ndarray, heights: np.ndarray, shade: str) -> None:
    """A bar for every frame; only where there is something to see."""
    seen = (heights > SEEN).nonzero()[0]
    for group in np.split(seen, (np.diff(seen) > 1).nonzero()[0] + 1):
        if len(group):
            axis.stairs(heights[group], _edges(x, group), fill=True, color=shade, linewidth=0, alpha=0.85)


def _edges(x: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """The bounds of frames that follow one another."""
    half = (x[1] - x[0]) / 2 if len(x) > 1 else 0.5
    return np.append(x[frames] - half, x[frames[-1]] + half)
