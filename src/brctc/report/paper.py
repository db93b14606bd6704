"""What the paper reports (table 1, appendices G, H and I), to put beside our own figures."""

from typing import NamedTuple


class PaperResult(NamedTuple):
    """Vanilla CTC and BRCTC on one of the paper's test sets; Intel Xeon Platinum 8255C."""

    corpus: str
    test_set: str
    size: str
    """Of the training data."""
    score: tuple[float, float]
    """Errors in percent of characters (Mandarin) or words (English); BLEU of translations."""
    factor: float
    """Of BRCTC; vanilla CTC is not trimmed."""
    oracle: float
    time: tuple[float, float]
    """Real-time factors; of text translation, relative to vanilla CTC."""
    risk: float
    """The factor of its early finish."""
    beam: int = 10
    epochs: int = 100


class PaperSystems(NamedTuple):
    """A kind of system, and where the paper has it."""

    place: str
    results: tuple[PaperResult, ...]


PAPER = {
    "attention": PaperSystems(
        "appendix G, attention",
        (
            PaperResult("Aishell-1", "test", "178 h", (4.74, 4.75), 0.21, 0.12, (1.19, 0.94), 10),
            PaperResult("Aishell-2", "ios", "1,000 h", (5.48, 5.34), 0.34, 0.12, (1.07, 0.95), 10),
            PaperResult("Wenetspeech", "net", "10,000 h", (9.11, 9.04), 0.37, 0.21, (1.91, 1.53), 30),
            PaperResult("Librispeech", "test-other", "960 h", (7.72, 7.63), 0.35, 0.14, (1.97, 1.38), 100),
        ),
    ),
    "transducer": PaperSystems(
        "appendix G, transducer",
        (
            PaperResult("Aishell-1", "test", "178 h", (4.92, 4.73), 0.20, 0.12, (0.37, 0.21), 10),
            PaperResult("Aishell-2", "ios", "1,000 h", (5.47, 5.35), 0.29, 0.12, (0.42, 0.22), 10),
            PaperResult("Wenetspeech", "net", "10,000 h", (8.61, 8.87), 0.40, 0.21, (0.48, 0.33), 30),
            PaperResult("Librispeech", "test-other", "960 h", (7.79, 7.41), 0.36, 0.14, (0.31, 0.18), 100),
        ),
    ),
    "text translation": PaperSystems(
        "appendix I, text translation",
        (
            PaperResult("IWSLT14", "De-En", "160 k", (31.9, 31.7), 0.63, 0.34, (1.00, 0.73), 50, 5, 200),
            PaperResult("IWSLT14", "Es-En", "160 k", (37.9, 38.0), 0.63, 0.34, (1.00, 0.73), 50, 5, 200),
        ),
    ),
    "speech translation": PaperSystems(
        "table 1, speech translation",
        (
            PaperResult("MuST-C v2", "COMMON", "En-De", (29.3, 29.1), 0.58, 0.25, (0.51, 0.37), 50),
            PaperResult("MuST-C v2", "HE", "En-De", (28.5, 28.7), 0.58, 0.25, (0.51, 0.37), 50),
        ),
    ),
}


class PaperLatency(NamedTuple):
    """One of the paper's online systems (appendix H): greedy CTC, chunks of 80 to 640 ms."""

    risk: float
    """The factor of its early emission; 0 is vanilla CTC."""
    dcl_ms: float
    dl_ms: float
    rtf: float
    cl_ms: float
    error: float
    """Percent of characters."""

    @property
    def latency_ms(self) -> float:
        """Data collecting + drift + computation."""
        return self.dcl_ms + self.dl_ms + self.cl_ms


def _latencies(*rows: tuple[float, ...]) -> tuple[PaperLatency, ...]:
    return tuple(PaperLatency(*row) for row in rows)


PAPER_ONLINE = {
    "Aishell-1 test": _latencies(
        (0, 120, 336, 0.305, 24, 7.19),
        (0, 240, 206, 0.176, 28, 6.88),
        (0, 480, 94, 0.128, 40, 6.28),
        (0, 720, 80, 0.106, 50, 5.77),
        (0, 960, 72, 0.092, 58, 5.55),
        (20, 120, 195, 0.305, 24, 7.97),
        (20, 240, 47, 0.176, 28, 8.10),
        (20, 480, -80, 0.128, 40, 7.23),
        (20, 720, -200, 0.106, 50, 6.31),
        (20, 960, -517, 0.092, 58, 6.40),
    ),
    "Aishell-2 test-android": _latencies(
        (0, 80, 363, 0.283, 22, 10.25),
        (0, 160, 243, 0.175, 28, 9.97),
        (0, 320, 189, 0.116, 37, 9.44),
        (0, 480, 103, 0.104, 49, 9.03),
        (0, 640, 72, 0.091, 58, 8.57),
        (20, 80, 200, 0.283, 22, 11.63),
        (20, 160, 123, 0.175, 28, 11.21),
        (20, 320, -8, 0.116, 37, 10.33),
        (20, 480, -82, 0.104, 49, 9.65),
        (20, 640, -166, 0.091, 58, 9.16),
    ),
}
