"""Errors against latency as a table: appendix H's columns, a terminal's, or the details."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from brctc.evaluate.results import scale, title_of
from brctc.evaluate.trade_off import TradeOff, Trial, pareto_front
from brctc.report.paper import PAPER_ONLINE
from brctc.report.tables import NOTHING, Group, Table

FRONT = "●"
Place = Literal["terminal", "page", "details"]


def trade_off_table(trade_off: TradeOff, place: Place = "page") -> Table:
    """All settings, those on the Pareto front marked: appendix H's columns, a terminal's, or the details."""
    front = pareto_front(trade_off.trials)
    first = trade_off.trials[0].online
    timed = first.utterances - first.without_reference
    few = f"DL of {timed:,} of {first.utterances:,} utterances; " if first.without_reference else ""
    title = (
        f"{scale(trade_off.corpus)}{title_of(trade_off.corpus)} {trade_off.split}, "
        f"{first.utterances:,} utterances, "
        f"{first.error.tokens:,} {first.unit}s; latencies in ms; {few}{FRONT} on the Pareto front"
    )
    columns = [column for column in COLUMNS if place in column.places]
    rows = [
        (
            f"{trial.method} {FRONT}" if trial in front else trial.method,
            *(_known(column.of_trial(trial)) for column in columns),
        )
        for trial in trade_off.trials
    ]
    return Table((Group(title, tuple(column.title for column in columns)),), tuple(rows))


def _known(cell: str) -> str:
    """A model that gets no word right has no latency."""
    return NOTHING if "nan" in cell else cell


def _setting(trial: Trial) -> str:
    return "{:g} + {:g}".format(*trial.setting)


def _percentiles(trial: Trial) -> str:
    return f"{trial.online.drift.median_ms:.0f}, {trial.online.drift.p90_ms:.0f}"


def _observed(trial: Trial) -> str:
    return f"{trial.online.observed.mean_ms:.0f} / {trial.online.expected_ms:.0f}"


def _difference(trial: Trial) -> str:
    if trial.difference is None:
        return NOTHING
    return "{:+.2f} ({:+.2f} to {:+.2f})".format(*(100 * value for value in trial.difference[2:5]))


def _errors(trial: Trial) -> str:
    error = trial.online.error
    return f"{100 * error.rate:.2f} ({100 * error.low:.2f} to {100 * error.high:.2f})"


def _drift(trial: Trial) -> str:
    drift = trial.online.drift
    return f"{drift.mean_ms:.0f} ({drift.low_ms:.0f} to {drift.high_ms:.0f})"


class Column(NamedTuple):
    """What a column says of a trial, and where it stands."""

    title: str
    of_trial: Callable[[Trial], str]
    places: tuple[Place, ...]


COLUMNS = (
    Column("chunk + look-ahead", _setting, ("terminal", "page", "details")),
    Column("DCL+DL+CL", lambda t: f"{t.latency_ms:.0f}", ("terminal", "page")),
    Column("DCL", lambda t: f"{t.online.dcl_ms:.0f}", ("page",)),
    Column("DL", lambda t: f"{t.online.drift.mean_ms:.0f}", ("terminal",)),
    Column("DL (95%)", _drift, ("page",)),
    Column("CL", lambda t: f"{t.online.cl_ms:.0f}", ("page",)),
    Column("errors, % (95%)", _errors, ("terminal", "page")),
    Column("difference, points (95%)", _difference, ("page",)),
    Column("observed / expected", _observed, ("details",)),
    Column("DL median, 90%", _percentiles, ("details",)),
    Column("end of sentence, DL", lambda t: f"{t.online.end_of_sentence.mean_ms:.0f}", ("details",)),
    Column("observed", lambda t: f"{t.online.observed_end_of_sentence.mean_ms:.0f}", ("details",)),
    Column("RTF", lambda t: f"{t.online.rtf:#.2g}", ("details",)),
)


def paper_table() -> Table:
    """Appendix H."""
    titles = ("DCL + DL + CL, ms", "DCL", "DL", "RTF", "CL", "errors, %")
    rows = tuple(
        (
            f"{corpus}, " + ("vanilla" if row.risk == 0 else f"λ = {row.risk:g}"),
            f"{row.latency_ms:.0f}",
            f"{row.dcl_ms:.0f}",
            f"{row.dl_ms:.0f}",
            f"{row.rtf:.3f}",
            f"{row.cl_ms:.0f}",
            f"{row.error:.2f}",
        )
        for corpus, found in PAPER_ONLINE.items()
        for row in found
    )
    return Table((Group("the paper, appendix H: large models on 178 and 1,000 hours", titles),), rows)
