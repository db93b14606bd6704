"""How good and how fast a system is: pure functions of what it put out."""

from brctc.metrics.down_sampling import DownSampling, down_sampling
from brctc.metrics.error_rate import Comparison, ErrorRate, compare, error_rate
from brctc.metrics.latency import (
    DriftLatency,
    Spread,
    common_words,
    computational_latency_ms,
    data_collecting_latency_ms,
    drift_latency,
)
from brctc.metrics.real_time import RealTime, measure_rtf, one_thread

__all__ = [
    "Comparison",
    "DownSampling",
    "DriftLatency",
    "ErrorRate",
    "RealTime",
    "Spread",
    "common_words",
    "compare",
    "computational_latency_ms",
    "data_collecting_latency_ms",
    "down_sampling",
    "drift_latency",
    "error_rate",
    "measure_rtf",
    "one_thread",
]
