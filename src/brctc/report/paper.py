"""What the paper reports (appendix G), to put beside our own figures."""

from typing import NamedTuple


class PaperResult(NamedTuple):
    """Vanilla CTC and BRCTC on one of the paper's test sets; beam 10, Intel Xeon Platinum 8255C."""

    corpus: str
    test_set: str
    hours: int
    error: tuple[float, float]
    """Percent of characters (Mandarin) or words (English)."""
    factor: float
    """Of BRCTC; vanilla CTC is not trimmed."""
    oracle: float
    rtf: tuple[float, float]
    risk: float
    """The factor of its early finish."""


PAPER = {
    "attention": (
        PaperResult("Aishell-1", "test", 178, (4.74, 4.75), 0.21, 0.12, (1.19, 0.94), 10),
        PaperResult("Aishell-2", "ios", 1000, (5.48, 5.34), 0.34, 0.12, (1.07, 0.95), 10),
        PaperResult("Wenetspeech", "net", 10000, (9.11, 9.04), 0.37, 0.21, (1.91, 1.53), 30),
        PaperResult("Librispeech", "test-other", 960, (7.72, 7.63), 0.35, 0.14, (1.97, 1.38), 100),
    ),
    "transducer": (
        PaperResult("Aishell-1", "test", 178, (4.92, 4.73), 0.20, 0.12, (0.37, 0.21), 10),
        PaperResult("Aishell-2", "ios", 1000, (5.47, 5.35), 0.29, 0.12, (0.42, 0.22), 10),
        PaperResult("Wenetspeech", "net", 10000, (8.61, 8.87), 0.40, 0.21, (0.48, 0.33), 30),
        PaperResult("Librispeech", "test-other", 960, (7.79, 7.41), 0.36, 0.14, (0.31, 0.18), 100),
    ),
}
