"""What an evaluation has found, as plain data that goes to JSON and back."""

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError

from brctc.data.corpora import CORPORA
from brctc.evaluate.down_sampling import DownSampling
from brctc.evaluate.metrics import Difference, MetricInfo, Score
from brctc.evaluate.real_time import RealTime
from brctc.files import to_plain, write_text

T = TypeVar("T")
SPREAD = "spread over the test set"


BLANKS_SKIPPED = ", blanks skipped"
"""Behind the name of a system whose decoder does not see them."""


class JointSearch(NamedTuple):
    """The weights of a joint CTC/attention search."""

    ctc_weight: float
    length_reward: float
    tuned_on: str = ""
    """Where they were found to be the best of a grid; empty if they were given."""


@dataclass(frozen=True)
class SystemResult:
    """One system on the test set."""

    name: str
    method: str
    """The search, as `brctc.decode.Recognizer` calls it."""
    beam: int | None
    """None for a greedy search."""
    parameters: int
    risk: str
    """What the intermediate CTC, online the only one, was trained with at last, such as "early-finish 5";
    "none" for plain CTC."""
    trims: bool
    trimmable: bool
    """Whether its encoder can be trimmed at all."""
    steps: int | None
    """Of its training, and the seconds that they took."""
    train_s: float | None
    scores: dict[str, Score]
    """By the names of the evaluation's metrics."""
    differences: dict[str, Difference]
    """To the first system, on the same utterances; empty for the first itself."""
    down_sampling: DownSampling
    """What trimming keeps, or would keep of a system that does not trim; all, if it cannot be trimmed."""
    real_time: RealTime
    """Of one example alone."""
    batch_time: RealTime | None = None
    """Of an example in a batch."""
    search: JointSearch | None = None
    """Of the joint CTC/attention search."""

    @property
    def run(self) -> str:
        """The name of its training."""
        return self.name.removesuffix(BLANKS_SKIPPED)


class TimeUnit(NamedTuple):
    """What computation is divided by, as tables and plots call it."""

    title: str
    short: str
    axis: str


TIME_UNITS = {
    "second": TimeUnit("real-time factor, RTF", "RTF", "computation [s per s of input]"),
    "sentence": TimeUnit("seconds per sentence", "time", "computation [s per sentence]"),
}


@dataclass(frozen=True)
class BeamPoint:
    """A system's speed with one size of the beam."""

    name: str
    method: str
    beam: int
    real_time: RealTime


@dataclass(frozen=True)
class SystemOnSet:
    """One system on a test set: as `SystemResult`, but for what is of the system, and its speed."""

    scores: dict[str, Score]
    differences: dict[str, Difference]
    down_sampling: DownSampling


@dataclass(frozen=True)
class SetResults:
    """The systems of an evaluation on a test set, in the same order."""

    split: str
    utterances: int
    duration_s: float
    systems: tuple[SystemOnSet, ...]


@dataclass(frozen=True)
class Evaluation:
    """Systems on one test set, the baseline first, and perhaps on others."""

    corpus: str
    split: str
    utterances: int
    duration_s: float
    metrics: dict[str, MetricInfo]
    """What was measured, the most important first."""
    rtf_utterances: int
    sweep_utterances: int
    repeats: int
    """Of every timing."""
    systems: tuple[SystemResult, ...]
    sweep: tuple[BeamPoint, ...]
    machine: dict[str, str]
    time_per: Literal["second", "sentence"] = "second"
    """What times are of: a second of input, or, where that has no duration, a sentence."""
    batch: int = 1
    """Examples of a batch whose time was measured; 1 if none was."""
    rtf_of: str = SPREAD
    """Which utterances were timed."""
    others: tuple[SetResults, ...] = ()
    """Further test sets; speed was measured on the first alone."""

    @property
    def time_unit(self) -> TimeUnit:
        """How times are shown."""
        return TIME_UNITS[self.time_per]

    @property
    def main_metric(self) -> tuple[str, MetricInfo]:
        """The one that headlines and plots speak of."""
        return next(iter(self.metrics.items()))

    def to_json(self) -> str:
        """As text."""
        return to_json(self)

    @staticmethod
    def from_json(text: str) -> "Evaluation":
        """What `to_json` gave; anything else is refused."""
        return from_json(Evaluation, text)

    def save(self, path: str | Path) -> None:
        """Writes the file whole or not at all."""
        write_text(Path(path), self.to_json() + "\n")

    @staticmethod
    def load(path: str | Path) -> "Evaluation":
        """Reads what `save` wrote."""
        try:
            return Evaluation.from_json(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def title_of(corpus: str) -> str:
    """What results call a corpus: synthetic speech is never called anything else."""
    return (CORPORA[corpus].title if corpus in CORPORA else "") or corpus


def is_small_scale(corpus: str) -> bool:
    """Whether results on a corpus say nothing about large systems."""
    return corpus in CORPORA and CORPORA[corpus].small_scale


def scale(corpus: str) -> str:
    """In front of results: corpora that come along are small, and that is said."""
    return "small scale: " if is_small_scale(corpus) else ""


def caution(corpus: str) -> str:
    """What to look at in results."""
    if not is_small_scale(corpus):
        return ""
    return " Small models and a small corpus: look at the size of the effect, not at the error rates as such."


def describe_machine() -> dict[str, str]:
    """What the times were measured on."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        **gpu,
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def to_json(evaluation: object) -> str:
    """Of dataclasses and named tuples, as text."""
    return json.dumps(to_plain(evaluation), indent=1, ensure_ascii=False)


def from_json(kind: type[T], text: str) -> T:
    """What `to_json` gave of this kind; anything else is refused."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"not an evaluation: {place}: {first['msg']}") from None
