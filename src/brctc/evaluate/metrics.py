"""Metrics of texts: each a kind that registers itself, measured with an interval and compared in pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, SerializeAsAny

from brctc.config import Kind, Registry
from brctc.data.units import Unit
from brctc.evaluate.error_rate import compare, error_rate

METRICS: Registry["MetricConfig"] = Registry("metric")
ERROR_RATE, BLEU = "error rate", "BLEU"
"""What the paper's metrics are called: errors of words or characters, and of translations."""


@dataclass(frozen=True)
class Score:
    """What one system reaches on a corpus. `low` and `high` bound the value with 95% confidence."""

    value: float
    low: float
    high: float
    detail: str = ""
    """What the value is made of, such as "38 / 5,461"."""


@dataclass(frozen=True)
class Difference:
    """Two systems on the same examples: the second's value minus the first's, with its 95% interval."""

    value: float
    low: float
    high: float
    probability_better: float
    """Share of the resampled corpora on which the second is better; ties count half."""


@dataclass(frozen=True)
class MetricInfo:
    """How values of a metric are shown."""

    title: str
    """What it is, such as "error rate"."""
    unit: str
    """Of its values as they are shown, such as "%"."""
    scale: float
    """From a value to what is shown."""
    higher_is_better: bool
    detail_title: str = ""
    """Of what `Score.detail` says; empty if it says nothing."""
    note: str = ""
    """How exactly it is computed, in a line below the table; empty if the title says all."""

    def show(self, value: float) -> str:
        """A value with two decimals, without its unit."""
        return f"{self.scale * value:.2f}"

    def show_signed(self, value: float) -> str:
        """A difference of values."""
        return f"{self.scale * value:+.2f}"


class MetricConfig(Kind):
    """A metric as data. Every kind has a file or stands here, and registers itself in METRICS."""

    registry: ClassVar[Registry[Any]] = METRICS

    kind: str

    def info(self) -> MetricInfo:
        """How its values are shown."""
        raise NotImplementedError

    def measure(self, references: Sequence[str], hypotheses: Sequence[str]) -> Score:
        """What the hypotheses reach."""
        raise NotImplementedError

    def compare(self, references: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Difference:
        """The second system against the first."""
        raise NotImplementedError

    def describe(self, references: Sequence[str], hypotheses: Sequence[str]) -> str:
        """What the hypotheses reach, in a line."""
        info, found = self.info(), self.measure(references, hypotheses)
        value, low, high = (info.show(number) + info.unit for number in (found.value, found.low, found.high))
        detail = f"; {info.detail_title} {found.detail}" if info.detail_title else ""
        return f"{info.title}: {value} ({low} to {high}{detail})"


@METRICS.register
class ErrorRateMetric(MetricConfig):
    """Errors of words or characters: substitutions, deletions and insertions, over the references' length."""

    kind: Literal["error-rate"] = "error-rate"
    unit: Unit = "word"

    def info(self) -> MetricInfo:
        units = {"word": "words", "char": "characters"}[self.unit]
        return MetricInfo(ERROR_RATE, "%", 100.0, False, f"errors / {units}")

    def measure(self, references: Sequence[str], hypotheses: Sequence[str]) -> Score:
        found = error_rate(references, hypotheses, self.unit)
        return Score(found.rate, found.low, found.high, f"{found.errors:,} / {found.tokens:,}")

    def compare(self, references: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Difference:
        found = compare(references, first, second, self.unit)
        return Difference(found.difference, found.low, found.high, found.probability_b_better)

    def describe(self, references: Sequence[str], hypotheses: Sequence[str]) -> str:
        return f"{self.unit} {ERROR_RATE}: {error_rate(references, hypotheses, self.unit)}"


AnyMetric = Annotated[SerializeAsAny[MetricConfig], BeforeValidator(METRICS.parse)]
