"""What online models reach: errors against latency, and which settings nothing beats."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from brctc.data import Prepared
from brctc.files import write_text
from brctc.metrics import Comparison, compare
from brctc.metrics.error_rate import Unit
from brctc.models import Model, load_model
from brctc.models.bundle import DESCRIPTION
from brctc.report.evaluate import Progress, spread_indices, unit_of
from brctc.report.evaluation import describe_machine, scale
from brctc.report.online import (
    OnlineEvaluation,
    check_online,
    choose_utterances,
    digest_of,
    evaluate_online,
)
from brctc.report.paper import PAPER_ONLINE
from brctc.report.tables import NOTHING, Group, Table
from brctc.train import Cell, model_directory


@dataclass(frozen=True)
class Trial:
    """An online model, evaluated."""

    name: str
    method: str
    """How it was trained."""
    online: OnlineEvaluation
    difference: Comparison | None = None
    """To the first method (a) with the same chunks, on the same utterances."""

    @property
    def latency_ms(self) -> float:
        """Data collecting + drift + computation, on average."""
        return self.online.latency_ms

    @property
    def setting(self) -> tuple[float, float]:
        """Chunk and right context in ms."""
        return self.online.chunk_ms, self.online.right_context_ms

    def __str__(self) -> str:
        return f"{self.name}: {self.online.error.rate:.2%} errors, {self.latency_ms:.0f} ms"


@dataclass(frozen=True)
class TradeOff:
    """Trials, with what they were measured on."""

    corpus: str
    split: str
    texts: tuple[str, ...]
    """The references."""
    trials: tuple[Trial, ...]
    machine: dict[str, str]

    def __post_init__(self) -> None:
        if not self.trials:
            raise ValueError("there is no trial to show")

    @property
    def methods(self) -> list[str]:
        """In their order."""
        return list(dict.fromkeys(trial.method for trial in self.trials))


def compare_trials(texts: Sequence[str], trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Every trial with its difference to the first method, where that has the same chunks."""
    plain = {trial.setting: trial for trial in trials if trial.method == trials[0].method}

    def compared(trial: Trial) -> Trial:
        other = plain.get(trial.setting)
        if other is None or other is trial:
            return trial
        found = compare(texts, other.online.texts, trial.online.texts, trial.online.unit)
        return replace(trial, difference=found)

    return tuple(compared(trial) for trial in trials)


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that no other beats in one of error and latency without losing in the other.

    One that gets no word right has no latency, and is beaten.
    """

    def beaten(trial: Trial) -> bool:
        mine = trial.online.error.rate, trial.latency_ms
        others = [(other.online.error.rate, other.latency_ms) for other in trials]
        better = any(e <= mine[0] and ms <= mine[1] and (e, ms) != mine for e, ms in others)
        return better or math.isnan(trial.latency_ms)

    return sorted((trial for trial in trials if not beaten(trial)), key=lambda trial: trial.latency_ms)


def choose(trials: Sequence[Trial], target_latency_ms: float) -> Trial:
    """The trial with the fewest errors of those that are fast enough; of equal ones, the fastest."""
    able = [trial for trial in trials if trial.latency_ms <= target_latency_ms]
    if not able:
        if all(math.isnan(trial.latency_ms) for trial in trials):
            raise ValueError("no model gets a word right, so none has a latency")
        fastest = pareto_front(trials)[0]
        raise ValueError(f"nothing is within {target_latency_ms:g} ms; the fastest is {fastest}")
    return min(able, key=lambda trial: (trial.online.error.rate, trial.latency_ms))


FRONT = "●"
Place = Literal["terminal", "page", "details"]


def trade_off_table(trade_off: TradeOff, place: Place = "page") -> Table:
    """All settings, those on the Pareto front marked: appendix H's columns, a terminal's, or the details."""
    front = pareto_front(trade_off.trials)
    first = trade_off.trials[0].online
    timed = first.utterances - first.without_reference
    few = f"DL of {timed:,} of {first.utterances:,} utterances; " if first.without_reference else ""
    title = (
        f"{scale(trade_off.corpus)}{trade_off.corpus} {trade_off.split}, {first.utterances:,} utterances, "
        f"{first.error.tokens:,} {first.unit}s; latencies in ms; {few}{FRONT} nothing beats it"
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


def evaluate_trials(
    cells: Sequence[Cell],
    directory: str | Path,
    prepared: Prepared,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> TradeOff:
    """Evaluates all trained cells of a sweep. What was measured before is read from its file.

    The first cell's tokens decide what the errors of all are counted in.
    """
    directory = Path(directory)
    chosen = choose_utterances(prepared, limit)
    digest = digest_of(prepared, chosen)
    unit = unit_of(cells[0].recipe.tokens.kind)
    result = "online.json" if len(chosen) == len(prepared) else f"online-{len(chosen)}.json"
    trials = []
    for cell in cells:
        run = directory / cell.name
        model = model_directory(run)
        online = _read(run / result, digest, unit) if is_older(model, run / result) else None
        if online is None:
            online = _measure(cell.name, load_model(model), prepared, limit, unit, progress)
            write_text(run / result, online.to_json() + "\n")
        trials.append(Trial(cell.name, cell.method, online))
    return _put_together(cells[0].recipe.corpus.name, prepared, trials, limit)


def evaluate_runs(
    runs: Mapping[str, str | Path],
    prepared: Prepared,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> TradeOff:
    """Evaluates online models by their names; the first is what others with its chunks are compared with, and
    decides what errors are counted in."""
    models = {name: load_model(directory) for name, directory in runs.items()}
    for name, model in models.items():
        check_online(name, model, prepared)
    unit = unit_of(next(iter(models.values())).tokenizer.kind)
    trials = [
        Trial(name, name, _measure(name, model, prepared, limit, unit, progress))
        for name, model in models.items()
    ]
    return _put_together(None, prepared, trials, limit)


def _measure(
    name: str, model: Model, prepared: Prepared, limit: int | None, unit: Unit, progress: Progress | None
) -> OnlineEvaluation:
    tell = progress and partial(_tell, progress, name)
    return evaluate_online(model, prepared, limit=limit, unit=unit, progress=tell)


def _put_together(
    corpus: str | None, prepared: Prepared, trials: Sequence[Trial], limit: int | None
) -> TradeOff:
    """Trials on the same utterances, compared in pairs."""
    texts = tuple(prepared.utterances[i].text for i in spread_indices(len(prepared), limit))
    name = corpus or prepared.directory.name
    return TradeOff(name, prepared.split, texts, compare_trials(texts, trials), describe_machine())


def is_older(model: Path, result: Path) -> bool:
    """Whether something was measured, and the model has not been trained anew since."""
    return result.exists() and (model / DESCRIPTION).stat().st_mtime_ns <= result.stat().st_mtime_ns


def _read(path: Path, digest: str, unit: Unit) -> OnlineEvaluation | None:
    """What was measured before, if it was on these utterances and in this unit."""
    try:
        found = OnlineEvaluation.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}; without the file, it is measured again") from None
    return found if (found.digest, found.unit) == (digest, unit) else None


def _tell(progress: Progress, name: str, what: str, done: int, total: int) -> None:
    progress(f"{name}: {what}", done, total)
