"""What online models reach: errors against latency, and the Pareto front of the settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from brctc.data import Prepared
from brctc.data.units import Unit, unit_of
from brctc.evaluate.decoding import Progress, spread_indices
from brctc.evaluate.error_rate import Comparison, compare
from brctc.evaluate.online import (
    OnlineEvaluation,
    check_online,
    choose_utterances,
    digest_of,
    evaluate_online,
)
from brctc.evaluate.results import describe_machine
from brctc.files import write_text
from brctc.models import load_model
from brctc.runs import MODEL_DESCRIPTION, RunDirectory, model_directory


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


def evaluate_cells(
    methods: Mapping[str, str],
    directory: str | Path,
    prepared: Prepared,
    *,
    corpus: str | None = None,
    limit: int | None = None,
    suffix: str = "",
    jobs: int = 1,
    progress: Progress | None = None,
) -> TradeOff:
    """Evaluates all trained cells of a sweep. What was measured before is read from its file.

    `methods` names how each run in `directory` was trained. The first one's tokens decide the unit of all
    errors and latencies. `suffix` tells the files of other utterances apart.
    """
    runs = {name: RunDirectory(Path(directory) / name) for name in methods}
    chosen = choose_utterances(prepared, limit)
    digest = digest_of(prepared, chosen)
    unit = unit_of(load_model(model_directory(next(iter(runs.values())).path)).tokenizer.kind)
    result = f"online{suffix}.json"
    trials = []
    for name, run in runs.items():
        model = model_directory(run.path)
        online = _read(run.path / result, digest, unit) if is_older(model, run.path / result) else None
        if online is None:
            online = _measure(name, model, prepared, limit, unit, jobs, progress)
            write_text(run.path / result, online.to_json() + "\n")
        trials.append(Trial(name, methods[name], online))
    return _put_together(corpus, prepared, trials, limit)


def evaluate_runs(
    runs: Mapping[str, str | Path],
    prepared: Prepared,
    *,
    limit: int | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> TradeOff:
    """Evaluates online models by their names; the first is what others with its chunks are compared with, and
    decides what errors and latencies are counted in."""
    kinds = []
    for name, directory in runs.items():  # all of them before the first is measured
        model = load_model(directory)
        check_online(name, model, prepared)
        kinds.append(model.tokenizer.kind)
    unit = unit_of(kinds[0])
    trials = [
        Trial(name, name, _measure(name, Path(directory), prepared, limit, unit, jobs, progress))
        for name, directory in runs.items()
    ]
    return _put_together(None, prepared, trials, limit)


def _measure(
    name: str,
    model: Path,
    prepared: Prepared,
    limit: int | None,
    unit: Unit,
    jobs: int,
    progress: Progress | None,
) -> OnlineEvaluation:
    tell = progress and partial(_tell, progress, name)
    return evaluate_online(model, prepared, limit=limit, unit=unit, jobs=jobs, progress=tell)


def _put_together(
    corpus: str | None, prepared: Prepared, trials: Sequence[Trial], limit: int | None
) -> TradeOff:
    """Trials on the same utterances, compared in pairs."""
    chosen = spread_indices(len(prepared), limit)
    texts = tuple(prepared.examples[i].texts["transcript"] for i in chosen)
    name = corpus or prepared.directory.name
    return TradeOff(name, prepared.split, texts, compare_trials(texts, trials), describe_machine())


def is_older(model: Path, result: Path) -> bool:
    """Whether something was measured, and the model has not been trained anew since."""
    return result.exists() and (model / MODEL_DESCRIPTION).stat().st_mtime_ns <= result.stat().st_mtime_ns


def _read(path: Path, digest: str, unit: Unit) -> OnlineEvaluation | None:
    """What was measured before, if it was on these utterances and in this unit."""
    try:
        found = OnlineEvaluation.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}; without the file, it is measured again") from None
    return found if (found.digest, found.unit) == (digest, unit) else None


def _tell(progress: Progress, name: str, what: str, done: int, total: int) -> None:
    progress(f"{name}: {what}", done, total)
