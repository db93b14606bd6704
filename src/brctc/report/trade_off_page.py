"""The pictures (Fig. 4) and the page of a sweep."""

import shlex
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brctc.evaluate.results import caution, title_of, to_json
from brctc.evaluate.trade_off import TradeOff, Trial, pareto_front
from brctc.files import write_text
from brctc.report.escaping import escape
from brctc.report.page import html_page
from brctc.report.sections import details, figure_html, provenance
from brctc.report.style import FAINT, colours, new_figure, styled
from brctc.report.tables import to_html
from brctc.report.trade_off_table import paper_table, trade_off_table

MARKERS = "osD^vPX*"
Look = tuple[str, Literal["full", "none", "left", "bottom"]]
"""How settings of one share of right context are joined, and their markers filled."""
LOOKS: tuple[Look, ...] = (("-", "full"), ("--", "none"), (":", "left"), ("-.", "bottom"))


@styled
def plot_trade_off(trade_off: TradeOff) -> Figure:
    """The four plots of Fig. 4, with the Pareto front in the third."""
    figure = new_figure(11, 7.2, _headline(trade_off))
    (drifts, errors), (latencies, speeds) = figure.subplots(2, 2)
    shares = sorted({_share(trial) for trial in trade_off.trials})
    for i, (method, shade) in enumerate(zip(trade_off.methods, colours(len(trade_off.methods)), strict=True)):
        trials = [trial for trial in trade_off.trials if trial.method == method]
        marker = MARKERS[i % len(MARKERS)]
        for axis, x, y in (
            (drifts, _dcl, lambda trial: trial.online.drift.mean_ms),
            (errors, _dcl, _percent),
            (latencies, lambda trial: trial.online.dcl_ms + trial.online.drift.mean_ms, _percent),
            (speeds, _dcl, lambda trial: trial.online.rtf),
        ):
            for k, share in enumerate(shares):
                found = sorted((x(trial), y(trial)) for trial in trials if _share(trial) == share)
                label = f"{method}, {_ratio(share)}" if len(shares) > 1 else method
                _line(axis, found, LOOKS[k % len(LOOKS)], shade, marker, label)
        bounds = [(100 * trial.online.error.low, 100 * trial.online.error.high) for trial in trials]
        errors.vlines(
            [_dcl(trial) for trial in trials], *zip(*bounds, strict=True), colors=shade, linewidth=1
        )
    front = pareto_front(trade_off.trials)
    steps = [trial.online.dcl_ms + trial.online.drift.mean_ms for trial in front]
    heights = [_percent(trial) for trial in front]
    latencies.step(steps, heights, where="post", color=FAINT, linewidth=5, alpha=0.35, zorder=0)
    drifts.set_title("(a) late by data collecting, and by drift")
    drifts.set_ylabel("drift latency, DL [ms]")
    errors.set_title("(b) errors against data collecting; bars: 95% intervals")
    latencies.set_title("(c) errors against both; grey: the Pareto front (with CL)")
    latencies.set_xlabel("DCL + DL [ms]")
    speeds.set_title("(d) computation")
    speeds.set_ylabel("real-time factor")
    speeds.set_ylim(0)
    for axis in (errors, latencies):
        axis.set_ylabel("errors [%]")
        axis.set_ylim(0)
    for axis in (drifts, errors, speeds):
        axis.set_xlabel("data-collecting latency, DCL [ms]")
    handles, labels = drifts.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _dcl(trial: Trial) -> float:
    return trial.online.dcl_ms


def _percent(trial: Trial) -> float:
    return 100 * trial.online.error.rate


def _share(trial: Trial) -> Fraction:
    """The right context as a share of the chunk."""
    chunk_ms, right_ms = trial.setting
    return Fraction(right_ms / chunk_ms).limit_denominator(1000)  # both are whole numbers of frames


def _ratio(share: Fraction) -> str:
    """Of chunk to right context, as the paper writes it."""
    return f"{share.denominator}:{share.numerator}"


def _line(
    axis: Axes, points: Sequence[tuple[float, float]], look: Look, shade: str, marker: str, label: str
) -> None:
    if points:  # or else it would be in the legend
        linestyle, fill = look
        axis.plot(
            *zip(*points, strict=True),
            marker=marker,
            markersize=5,
            color=shade,
            fillstyle=fill,
            linestyle=linestyle,
            linewidth=1.1,
            label=label,
            clip_on=False,  # a point without errors is on the axis
        )


def _headline(trade_off: TradeOff) -> str:
    """The fastest setting of the first method, and what has no more errors in less time."""
    first = [trial for trial in trade_off.trials if trial.method == trade_off.methods[0]]
    if not pareto_front(first):
        return f"{trade_off.methods[0]} gets no word right"
    fastest = pareto_front(first)[0]
    if len(first) == 1:
        title = str(fastest)
    else:
        title = (
            f"{fastest.method} needs at least {fastest.latency_ms:.0f} ms ({_percent(fastest):.2f}% errors)"
        )
    others = [trial for trial in trade_off.trials if trial.method != fastest.method]
    able = [trial for trial in others if trial.online.error.rate <= fastest.online.error.rate]
    better = [trial for trial in pareto_front(able) if trial.latency_ms < fastest.latency_ms]
    return f"{title}; {better[0]}" if better else title


def write_trade_off(trade_off: TradeOff, out: str | Path, command: str | None = None) -> None:
    """Writes the page, which needs nothing else, and its numbers into a JSON file beside it."""
    title = f"Errors against latency on {title_of(trade_off.corpus)}"
    found = trade_off.trials[0].online
    counted = "" if found.unit == "word" else " (of Chinese and Japanese, characters)"
    about = f"""<p>An online recognizer is late by the time it takes to collect a chunk and its look-ahead
(DCL), to compute it (CL), and by how much later than it is said a word is predicted (drift, DL). A risk that
prefers early emission lowers the drift, so that larger chunks, which make fewer errors, can be had for the
same latency.</p>
<p>Models: {len(trade_off.trials)}; utterances: {found.utterances:,} ({found.error.tokens:,}
{escape(found.unit)}s) of {escape(title_of(trade_off.corpus))} ({escape(trade_off.split)}); greedy
CTC.{caution(trade_off.corpus)}</p>
"""
    plots = figure_html(
        plot_trade_off(trade_off),
        f"Each point is a model{_lines(trade_off)}. The nearer to the lower left corner, the better.",
    )
    results = f"""{plots}<div class="wide">{to_html(trade_off_table(trade_off))}</div>
<p class="soft">DL: mean last frame of a word's prediction minus its start in the reference, over the words
that both have{counted}. The difference is paired, to {escape(trade_off.methods[0])} with the same chunks.
Utterances without reference times, left out of DL: {found.without_reference}.</p>
<div class="wide">{to_html(trade_off_table(trade_off, "details"))}</div>
<p class="soft">Observed: what the streaming recognizer's listener really waited, with computation measured,
on {found.streamed} of the utterances; expected: DCL + DL + CL of the same ones. End of sentence: from the
end of the last word to its prediction (negative where it is known before it is over), and, observed, until it
was handed over.</p>
"""
    command = command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    numbers = to_json(trade_off)
    made = provenance(command, trade_off.machine) + details("All numbers (JSON)", numbers)
    contents = {
        "results": ("Errors and latency", results),
        "front": ("Pareto front", _front(trade_off)),
        "paper": ("The paper's own figures", f'<div class="wide">{to_html(paper_table())}</div>'),
        "made": ("How this page was made", made),
    }
    write_text(Path(out), html_page(title, about, contents))
    write_text(Path(out).with_suffix(".json"), numbers + "\n")


def _lines(trade_off: TradeOff) -> str:
    """What the lines of the plots are, and the ratios in their legend, if there are any."""
    shares = [_share(trial) for trial in trade_off.trials]
    lines = {(trial.method, share) for trial, share in zip(trade_off.trials, shares, strict=True)}
    joined = "; lines join chunks of different sizes" if len(lines) < len(shares) else ""
    ratios = "; ratios are of chunk to look-ahead" if len(set(shares)) > 1 else ""
    return joined + ratios


def _front(trade_off: TradeOff) -> str:
    front = pareto_front(trade_off.trials)
    methods = {trial.method for trial in front}
    others = [method for method in trade_off.methods if method not in methods]
    listed = "".join(f"<li>{escape(str(trial))}</li>" for trial in front)
    left_out = f"<p>Nowhere on it: {escape(', '.join(others))}.</p>" if others else ""
    return f"<p>From the fastest to the most exact:</p><ul>{listed}</ul>{left_out}\n"
