"""From the encoder's output to text."""

from brctc.decode.ctc import ctc_frames, ctc_greedy, ctc_prefix_beam
from brctc.decode.ctc_prefix import CTCPrefixScorer, PrefixState
from brctc.decode.hypothesis import Hypothesis

__all__ = [
    "CTCPrefixScorer",
    "Hypothesis",
    "PrefixState",
    "ctc_frames",
    "ctc_greedy",
    "ctc_prefix_beam",
]
