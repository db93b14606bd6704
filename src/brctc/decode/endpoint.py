"""When an utterance is over, by how long nothing more was said."""

from dataclasses import dataclass
from typing import Literal

EndReason = Literal["silence", "pause", "length", "end"]
"""Nothing was said for long; nothing more was said; it grew too long; the audio ended."""
ROUNDING_S = 1e-9


@dataclass(frozen=True)
class EndpointRules:
    """Three rules, as Kaldi and sherpa have them; None is never. A segment ends where the first one holds.

    Silence is what the model says of it: blank frames.
    """

    silence_s: float | None = 2.4
    """Of silence, while nothing was said."""
    pause_s: float | None = 1.2
    """Of silence, after something was said."""
    longest_s: float | None = 20.0
    """Of a segment, whatever is said."""

    def __post_init__(self) -> None:
        for name in ("silence_s", "pause_s", "longest_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, expected more than 0, or None")

    def reason(self, said: bool, silent_s: float, length_s: float) -> EndReason | None:
        """Why a segment ends: whether it has tokens, the silence behind them, and how long it is."""
        quiet = self.pause_s if said else self.silence_s
        if quiet is not None and silent_s >= quiet - ROUNDING_S:
            return "pause" if said else "silence"
        if self.longest_s is not None and length_s >= self.longest_s - ROUNDING_S:
            return "length"
        return None


NEVER = EndpointRules(None, None, None)
"""One segment, however long."""
