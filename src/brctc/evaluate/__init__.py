"""Measuring what systems reach: errors, down-sampling, speed and latency, as plain result objects."""

from brctc.extras import check_extra

check_extra()


from brctc.evaluate.defaults import default_metrics
from brctc.evaluate.down_sampling import DownSampling, down_sampling
from brctc.evaluate.error_rate import Comparison, ErrorRate, compare, error_rate
from brctc.evaluate.latency import (
    DriftLatency,
    Spread,
    common_words,
    computational_latency_ms,
    data_collecting_latency_ms,
    drift_latency,
)
from brctc.evaluate.metrics import METRICS, Difference, MetricConfig, MetricInfo, Score
from brctc.evaluate.offline import EvaluationOptions, evaluate_models
from brctc.evaluate.online import OnlineEvaluation, evaluate_online
from brctc.evaluate.real_time import RealTime, measure_rtf, one_thread
from brctc.evaluate.results import BeamPoint, Evaluation, SystemResult, describe_machine
from brctc.evaluate.trade_off import (
    TradeOff,
    Trial,
    choose,
    evaluate_cells,
    evaluate_runs,
    pareto_front,
)

__all__ = [
    "BeamPoint",
    "Comparison",
    "Difference",
    "DownSampling",
    "DriftLatency",
    "ErrorRate",
    "Evaluation",
    "EvaluationOptions",
    "METRICS",
    "MetricConfig",
    "MetricInfo",
    "OnlineEvaluation",
    "RealTime",
    "Score",
    "Spread",
    "SystemResult",
    "TradeOff",
    "Trial",
    "choose",
    "common_words",
    "compare",
    "computational_latency_ms",
    "data_collecting_latency_ms",
    "default_metrics",
    "describe_machine",
    "down_sampling",
    "drift_latency",
    "error_rate",
    "evaluate_cells",
    "evaluate_models",
    "evaluate_online",
    "evaluate_runs",
    "measure_rtf",
    "one_thread",
    "pareto_front",
]
