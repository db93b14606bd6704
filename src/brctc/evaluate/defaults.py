"""What systems are measured with, if nobody says otherwise."""

from brctc.evaluate.error_rate import unit_of
from brctc.evaluate.metrics import ErrorRateMetric, MetricConfig
from brctc.evaluate.translation_metrics import BLEUMetric, ChrFMetric

TRANSLATION = "translation"
"""The text that has many right wordings, so that errors against one reference say little."""


def default_metrics(text: str, tokens: str) -> dict[str, MetricConfig]:
    """For a system that puts out this text (`model.output`) in tokens of this kind, the main one first."""
    if text == TRANSLATION:
        return {"bleu": BLEUMetric(), "chrf": ChrFMetric()}
    return {"error-rate": ErrorRateMetric(unit=unit_of(tokens))}
