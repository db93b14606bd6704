"""Plots of numbers: results, training curves, speed against the size of the beam."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from brctc.evaluate.results import Evaluation, SystemResult
from brctc.report.runs import RunFiles
from brctc.report.style import FAINT, INK, colours, new_figure, styled
from brctc.train.journal import error_name

WIDTH = 10.5
PERCENTS = (0, 1, 3, 10, 30, 100)
BINS = 150
"""Points of a training curve, at most."""


@styled
def plot_results(evaluation: Evaluation) -> Figure:
    """The main metric, down-sampling and speed (Fig. 3a, 3b)."""
    systems = evaluation.systems
    metric, info = evaluation.main_metric
    shades = colours(len(systems))
    rows = np.arange(len(systems))[::-1]
    figure = new_figure(WIDTH, 1.5 + 0.38 * len(systems), _headline(evaluation))
    errors, factors, speeds = figure.subplots(1, 3)
    for panel in (errors, factors, speeds):
        panel.set_yticks(rows, [system.name for system in systems] if panel is errors else [])
        panel.set_ylim(-0.6, len(systems) - 0.4)
        panel.grid(visible=False, axis="y")
        panel.tick_params(axis="y", length=0)
    for row, system, shade in zip(rows, systems, shades, strict=True):
        score = system.scores[metric]
        shown, low, high = (info.scale * value for value in (score.value, score.low, score.high))
        errors.barh(row, shown, 0.6, color=shade)
        errors.plot([low, high], [row, row], color=INK, linewidth=1.2)
        text = f"{shown:.2f}{info.unit}"
        errors.annotate(text, (high, row), (4, 0), textcoords="offset points", va="center")
        _draw_factor(factors, row, system, shade)
        timed = system.real_time
        speeds.barh(row, timed.encoder_rtf, 0.6, color=shade)
        speeds.barh(row, timed.decoder_rtf, 0.6, left=timed.encoder_rtf, color=shade, alpha=0.45)
        speeds.annotate(
            f"{timed.rtf:#.3g}", (timed.rtf, row), (4, 0), textcoords="offset points", va="center"
        )
    errors.set_xlim(0, max(system.scores[metric].high for system in systems) * 1.3 * info.scale or 1)
    factors.set_xlim(0, 1)
    speeds.set_xlim(0, max(system.real_time.rtf for system in systems) * 1.3)
    speeds.xaxis.set_major_locator(MaxNLocator(4))
    errors.set_title(f"{info.title}, with its 95% interval")
    errors.set_xlabel(f"{info.detail_title or info.title} [{info.unit}]" if info.unit else info.title)
    factors.set_title("frames kept; the mark is the oracle")
    factors.set_xlabel("down-sampling factor")
    speeds.set_title("encoder (full) and decoder (pale)")
    speeds.set_xlabel(evaluation.time_unit.axis)
    return figure


def _draw_factor(axis: Axes, row: int, system: SystemResult, shade: str) -> None:
    if not system.trimmable:
        axis.annotate("cannot be trimmed", (0, row), (4, 0), textcoords="offset points", va="center")
        return
    factor, oracle = system.down_sampling
    axis.barh(row, factor, 0.6, color=shade, alpha=1.0 if system.trims else 0.45)
    axis.plot([oracle, oracle], [row - 0.38, row + 0.38], color=INK, linewidth=1.6)
    text = f"{factor:.2f}" + ("" if system.trims else " if trimmed")
    inside = factor > 0.5
    axis.annotate(
        text, (factor, row), (-4 if inside else 4, 0), textcoords="offset points", va="center",
        ha="right" if inside else "left",
    )  # fmt: skip


def _headline(evaluation: Evaluation) -> str:
    metric, info = evaluation.main_metric
    first, *others = evaluation.systems
    parts = []
    for system in others:
        found = [f"{info.show_signed(system.differences[metric].value)} points of {info.title}"]
        found += [f"{system.down_sampling.factor:.0%} of the frames"] if system.trimmable else []
        found += [f"{system.real_time.ratio - 1:+.0%} time"]
        parts.append(f"{system.name}: {', '.join(found)}")
    score = info.show(first.scores[metric].value)
    return "; ".join(parts) or f"{first.name}: {info.title} {score}{info.unit}"


@styled
def plot_beams(evaluation: Evaluation) -> Figure:
    """Real-time factor against the size of the beam (Fig. 3c)."""
    largest = max(point.beam for point in evaluation.sweep)
    saved = "; ".join(
        f"{point.name} {point.real_time.ratio - 1:+.0%}"
        for point in evaluation.sweep
        if point.beam == largest and point.name != evaluation.systems[0].name
    )
    baseline = evaluation.systems[0].name
    title = f"Time at beam {largest} against {baseline}: {saved}" if saved else "Time against the beam"
    figure = new_figure(8.5, 3.4, title)
    panel = figure.subplots()
    for system, shade in zip(evaluation.systems, colours(len(evaluation.systems)), strict=True):
        points = [point for point in evaluation.sweep if point.name == system.name]
        sizes = [point.beam for point in points]
        times = [point.real_time.rtf for point in points]
        panel.plot(
            sizes, times, "o-", color=shade, markersize=3.5, label=f"{system.name}, {points[0].method}"
        )
        encoder = [point.real_time.encoder_rtf for point in points]
        panel.plot(sizes, encoder, "--", color=shade, linewidth=1, label="its encoder alone")
    figure.legend(loc="outside right upper")
    panel.set_xlabel("beam [hypotheses]")
    panel.set_ylabel(evaluation.time_unit.axis)
    panel.set_ylim(0)
    return figure


@styled
def plot_curves(runs: Sequence[RunFiles]) -> Figure:
    """What the trainings wrote into metrics.jsonl."""
    figure = new_figure(WIDTH, 5.6, _learnt(runs))
    (losses, errors), (factors, risks) = figure.subplots(2, 2, sharex=True)
    panels: tuple[Axes, ...] = (losses, errors, factors, risks)
    for run, shade in zip(runs, colours(len(runs)), strict=True):
        steps = [line for line in run.metrics if "seconds" in line]
        dev = [line for line in run.metrics if "dev_error" in line]
        trimmed = [line for line in dev if "dev_factor" in line]
        _binned(losses, _column(steps, "step"), _column(steps, "loss"), shade, run.name)
        errors.plot(_column(dev, "step"), 100 * _column(dev, "dev_error"), ".-", color=shade)
        factors.plot(_column(trimmed, "step"), _column(trimmed, "dev_factor"), ".-", color=shade)
        risks.plot(_column(steps, "step"), _risk(run, steps), color=shade)
        for before, line in pairwise(steps):
            if line["stage"] != before["stage"]:
                for panel in panels:
                    panel.axvline(before["step"], color=FAINT, linewidth=0.8, linestyle=":")
    losses.set_title("training loss: mean, and where 8 of 10 steps are")
    losses.set_ylabel("loss [nats per label]")
    if losses.dataLim.y0 > 0:
        losses.set_yscale("log")
    else:  # a risk may take a loss below 0
        losses.set_yscale("symlog", linthresh=0.1, linscale=0.5)
    losses.legend()
    errors.set_title("error on the development set, final CTC, greedy")
    errors.set_ylabel("errors [%]")
    errors.set_yscale("symlog", linthresh=1, linscale=0.3)  # 0 has a place, and the last percents are seen
    errors.set_yticks(PERCENTS, [str(percent) for percent in PERCENTS])
    errors.set_ylim(0, 130)
    if all(run.recipe.model.streaming for run in runs):
        factors.set_visible(False)  # there is nothing to trim for
        errors.tick_params(labelbottom=True)
        losses.tick_params(labelbottom=True)
    factors.set_title("frames that trimming keeps, or would keep")
    factors.set_ylabel("down-sampling factor")
    factors.set_ylim(0, 1.03)
    risks.set_title("risk factor of the first CTC")
    risks.set_ylabel("λ [nats]")
    risks.set_ylim(0)
    for panel in (factors, risks):
        panel.set_xlabel("step")
    return figure


def _learnt(runs: Sequence[RunFiles]) -> str:
    parts = []
    for run in runs:
        dev = [line for line in run.metrics if "dev_error" in line]
        if dev:
            kept = f" at {dev[-1]['dev_factor']:.2f}" if "dev_factor" in dev[-1] else ""
            parts.append(f"{run.name} {dev[-1]['dev_error']:.1%}{kept}")
    names = {error_name(line) for run in runs for line in run.metrics if "dev_error" in line}
    what = "CTC errors" if any("CTC" in name for name in names) else "Errors"
    what += "" if all(run.recipe.model.streaming for run in runs) else " and frames kept"
    return f"{what} at the end of training: " + ("; ".join(parts) or "not looked at")


def _risk(run: RunFiles, steps: Sequence[dict[str, Any]]) -> np.ndarray:
    """The factor of each stage's first CTC."""
    names = {
        name: next((term for term, loss in stage.losses.items() if loss is stage.watched), None)
        for name, stage in run.recipe.stages.items()
    }
    return np.array([line["factors"].get(f"{names[line['stage']]}.risk", 0.0) for line in steps], float)


def _column(lines: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([line[name] for line in lines], float)


def _binned(axis: Axes, steps: np.ndarray, values: np.ndarray, shade: str, label: str) -> None:
    """Many noisy points as a line of means in a band from the first to the last tenth."""
    groups = np.array_split(np.arange(len(steps)), min(BINS, max(1, len(steps) // 5)))
    middle = [steps[group].mean() for group in groups]
    low, high = ([np.quantile(values[group], share) for group in groups] for share in (0.1, 0.9))
    axis.fill_between(middle, low, high, color=shade, alpha=0.2, linewidth=0)
    axis.plot(middle, [values[group].mean() for group in groups], color=shade, label=label)
