"""What a sweep has found: errors against latency, and which settings nothing beats."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from brctc.data import Prepared
from brctc.files import write_text
from brctc.metrics import Comparison, compare
from brctc.report.evaluate import Progress, spread_indices
from brctc.report.evaluation import describe_machine, to_json
from brctc.report.online import OnlineEvaluation, evaluate_online
from brctc.report.paper import PAPER_ONLINE
from brctc.report.tables import NOTHING, Group, Table
from brctc.train import Cell, model_directory


@dataclass(frozen=True)
class Trial:
    """An online model of a sweep, evaluated."""

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
    """All trials of a sweep, with what they were measured on."""

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
    """The trials that no other beats in one of error and latency without losing in the other."""

    def beaten(trial: Trial) -> bool:
        mine = trial.online.error.rate, trial.latency_ms
        others = [(other.online.error.rate, other.latency_ms) for other in trials]
        return any(e <= mine[0] and ms <= mine[1] and (e, ms) != mine for e, ms in others)

    return sorted((trial for trial in trials if not beaten(trial)), key=lambda trial: trial.latency_ms)


def choose(trials: Sequence[Trial], target_latency_ms: float) -> Trial:
    """The trial with the fewest errors of those that are fast enough; of equal ones, the fastest."""
    able = [trial for trial in trials if trial.latency_ms <= target_latency_ms]
    if not able:
        fastest = min(trials, key=lambda trial: trial.latency_ms)
        raise ValueError(f"nothing is within {target_latency_ms:g} ms; the fastest is {fastest}")
    return min(able, key=lambda trial: (trial.online.error.rate, trial.latency_ms))


COLUMNS = (
    "chunk + right context, ms",
    "DCL + DL + CL, ms",
    "DCL",
    "DL (95% interval)",
    "DL median, 90%",
    "RTF",
    "CL",
    "end of sentence",
    "observed / expected, ms",
    "errors, % (95% interval)",
    "difference, points",
)
FRONT = "●"


def trade_off_table(trade_off: TradeOff) -> Table:
    """Appendix H's columns and what we add; settings on the Pareto front are marked."""
    front = pareto_front(trade_off.trials)
    first = trade_off.trials[0].online
    title = (
        f"small scale: {trade_off.corpus} {trade_off.split}, {first.utterances:,} utterances, "
        f"{first.error.tokens:,} {first.unit}s; latencies in ms; {FRONT} nothing beats it"
    )
    rows = [
        (f"{trial.method} {FRONT}" if trial in front else trial.method, *_cells(trial))
        for trial in trade_off.trials
    ]
    return Table((Group(title, COLUMNS),), tuple(rows))


def _cells(trial: Trial) -> tuple[str, ...]:
    found, drift = trial.online, trial.online.drift
    rates = (100 * value for value in (found.error.rate, found.error.low, found.error.high))
    difference = NOTHING
    if trial.difference is not None:
        points = (100 * value for value in trial.difference[2:5])
        difference = "{:+.2f} ({:+.2f} to {:+.2f})".format(*points)
    return (
        f"{found.chunk_ms:g} + {found.right_context_ms:g}",
        f"{trial.latency_ms:.0f}",
        f"{found.dcl_ms:.0f}",
        f"{drift.mean_ms:.0f} ({drift.low_ms:.0f} to {drift.high_ms:.0f})",
        f"{drift.median_ms:.0f}, {drift.p90_ms:.0f}",
        f"{found.rtf:#.2g}",
        f"{found.cl_ms:.0f}",
        f"{found.end_of_sentence.mean_ms:.0f}",
        f"{found.observed.mean_ms:.0f} / {found.expected_ms:.0f}",
        "{:.2f} ({:.2f} to {:.2f})".format(*rates),
        difference,
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


RESULT = "online.json"  # of a cell, in the directory of its run


def evaluate_trials(
    cells: Sequence[Cell],
    directory: str | Path,
    prepared: Prepared,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> TradeOff:
    """Evaluates all trained cells of a sweep. What was measured before is read from its file.

    Writes report.json with everything into the directory.
    """
    directory = Path(directory)
    chosen = spread_indices(len(prepared), limit)
    trials = []
    for cell in cells:
        run = directory / cell.name
        online = _read(run / RESULT, len(chosen))
        if online is None:
            tell = progress and partial(_tell, progress, cell.name)
            online = evaluate_online(model_directory(run), prepared, limit=limit, progress=tell)
            write_text(run / RESULT, online.to_json() + "\n")
        trials.append(Trial(cell.name, cell.method, online))
    texts = tuple(prepared.utterances[i].text for i in chosen)
    corpus = cells[0].recipe.corpus.name or prepared.directory.name
    found = TradeOff(corpus, prepared.split, texts, compare_trials(texts, trials), describe_machine())
    write_text(directory / "report.json", to_json(found) + "\n")
    return found


def _read(path: Path, utterances: int) -> OnlineEvaluation | None:
    """What was measured before, if it was on so many utterances."""
    if not path.exists():
        return None
    try:
        found = OnlineEvaluation.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}; without the file, it is measured again") from None
    return found if found.utterances == utterances else None


def _tell(progress: Progress, name: str, what: str, done: int, total: int) -> None:
    progress(f"{name}: {what}", done, total)
