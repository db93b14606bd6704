"""Results of several corpora in one picture (Fig. 3a, 3b)."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brctc.evaluate.down_sampling import DownSampling
from brctc.evaluate.metrics import MetricInfo, Score
from brctc.evaluate.results import Evaluation, title_of
from brctc.report.style import INK, colours, new_figure, styled

WIDTH, HEIGHT = 10.5, 0.26
"""Inches: of the picture, and of a bar."""


class Row(NamedTuple):
    """A system on a test set."""

    test_set: str
    system: int
    """Its place among the systems."""
    info: MetricInfo
    score: Score
    down_sampling: DownSampling
    trims: bool
    ratio: float | None
    """Of its time to the first system's, where it was measured."""


@styled
def plot_corpora(evaluations: Sequence[Evaluation]) -> Figure:
    """Scores, down-sampling and relative time of every test set; a system has its place in all of them."""
    counts = {len(evaluation.systems) for evaluation in evaluations}
    if len(counts) != 1:
        raise ValueError("the evaluations have different numbers of systems")
    titles = {evaluation.main_metric[1].title for evaluation in evaluations}
    if len(titles) != 1:
        raise ValueError(f"the evaluations have different metrics: {', '.join(sorted(titles))}")
    rows = [row for evaluation in evaluations for row in _rows(evaluation)]
    sets = {name: place for place, (name, _) in enumerate(groupby(rows, key=lambda row: row.test_set))}
    (count,) = counts
    figure = new_figure(WIDTH, 1.6 + HEIGHT * (count + 0.8) * len(sets), f"{titles.pop()} on several corpora")
    scores, factors, times = figure.subplots(1, 3, sharey=True)
    shades = colours(count)
    names = [system.name for system in evaluations[0].systems]
    for row in rows:
        place = -sets[row.test_set] + (0.5 - (row.system + 0.5) / count) * 0.75
        _draw(row, place, 0.7 / count, shades[row.system], (scores, factors, times))
    for name, shade in zip(names, shades, strict=True):
        factors.barh(0, 0, color=shade, label=name)
    factors.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=count, frameon=False, fontsize=8)
    scores.set_yticks([-place for place in sets.values()], list(sets))
    for panel in (scores, factors, times):
        panel.grid(visible=False, axis="y")
        panel.margins(x=0.16)
    unit = rows[0].info.unit
    scores.set_xlabel(f"{rows[0].info.title}, 95% interval" + (f" [{unit}]" if unit else ""))
    factors.set_xlim(0, 1.12)
    factors.set_xlabel("frames kept; the mark is the oracle")
    times.set_xlabel(f"time, {names[0]} = 1")
    return figure


def _rows(evaluation: Evaluation) -> list[Row]:
    metric, info = evaluation.main_metric
    corpus = title_of(evaluation.corpus)
    rows = [
        Row(
            f"{corpus}\n{evaluation.split}",
            place,
            info,
            system.scores[metric],
            system.down_sampling,
            system.trims,
            system.real_time.ratio,
        )
        for place, system in enumerate(evaluation.systems)
    ]
    for other in evaluation.others:
        for place, (found, system) in enumerate(zip(other.systems, evaluation.systems, strict=True)):
            name = f"{corpus}\n{other.split}"
            score = found.scores[metric]
            rows.append(Row(name, place, info, score, found.down_sampling, system.trims, None))
    return rows


def _draw(row: Row, place: float, height: float, shade: str, panels: tuple[Axes, Axes, Axes]) -> None:
    scores, factors, times = panels
    shown, low, high = (row.info.scale * value for value in (row.score.value, row.score.low, row.score.high))
    scores.barh(place, shown, height, color=shade)
    scores.plot([low, high], [place, place], color=INK, linewidth=1)
    _write(scores, f"{shown:.2f}", high, place)
    factor = row.down_sampling.factor if row.trims else 1.0
    factors.barh(place, factor, height, color=shade)
    factors.plot(np.full(2, row.down_sampling.oracle), [place - height / 2, place + height / 2], color=INK)
    _write(factors, f"{factor:.2f}", factor, place)
    if row.ratio is not None:
        times.barh(place, row.ratio, height, color=shade)
        _write(times, f"{row.ratio:.2f}", row.ratio, place)


def _write(panel: Axes, text: str, x: float, y: float) -> None:
    panel.annotate(text, (x, y), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
