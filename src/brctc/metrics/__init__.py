"""How good and how fast a system is: pure functions of what it put out."""

from brctc.metrics.down_sampling import DownSampling, down_sampling
from brctc.metrics.error_rate import Comparison, ErrorRate, compare, error_rate
from brctc.metrics.real_time import RealTime, measure_rtf

__all__ = [
    "Comparison",
    "DownSampling",
    "ErrorRate",
    "RealTime",
    "compare",
    "down_sampling",
    "error_rate",
    "measure_rtf",
]
