"""What systems are measured with, if nobody says otherwise."""

from collections.abc import Mapping
from typing import Any

from brctc.config import KeyedError, SectionError, describe_problems
from brctc.data.units import unit_of
from brctc.evaluate.metrics import METRICS, ErrorRateMetric, MetricConfig
from brctc.evaluate.translation_metrics import BLEUMetric, ChrFMetric
from brctc.models import Model

TRANSLATION = "translation"
"""The text that has many right wordings, so that errors against one reference say little."""


def default_metrics(text: str, tokens: str) -> dict[str, MetricConfig]:
    """For a system that puts out this text (`model.output`) in tokens of this kind, the main one first."""
    if text == TRANSLATION:
        return {"bleu": BLEUMetric(), "chrf": ChrFMetric()}
    return {"error-rate": ErrorRateMetric(unit=unit_of(tokens))}


def metrics_of(model: Model) -> Mapping[str, MetricConfig]:
    """What the model's recipe asks for, or what suits its output."""
    asked: dict[str, Any] = model.description.get("recipe", {}).get("metrics", {})
    found = {}
    for name, content in asked.items():
        try:
            found[name] = METRICS.parse(content)
        except SectionError as error:
            problems = describe_problems(error.error, error.config, f"metrics.{name}")
            raise ValueError(f"the model's recipe: {problems}") from None
        except KeyedError as error:
            raise ValueError(f"the model's recipe: metrics.{name}.{error.key}: {error}") from None
    return found or default_metrics(model.system.config.output, model.tokenizer.kind)
