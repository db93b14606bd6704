"""Word and character error rates, with bootstrap intervals over utterances."""

from collections.abc import Sequence
from typing import NamedTuple

import kaldialign
import numpy as np

from brctc.data.units import Unit
from brctc.evaluate.bootstrap import Array, interval, resampled_ratios


class ErrorRate(NamedTuple):
    """Errors of a system on a corpus. low and high bound the rate with 95% confidence."""

    errors: int
    tokens: int
    """Words or characters of the references."""
    rate: float
    """errors / tokens, as a fraction; insertions can take it above 1."""
    low: float
    high: float
    substitutions: int
    deletions: int
    insertions: int

    def __str__(self) -> str:
        return f"{self.rate:.2%} ({self.low:.2%} to {self.high:.2%}; {self.errors} of {self.tokens})"


class Comparison(NamedTuple):
    """Two systems on the same utterances: rate of b minus rate of a, with its 95% interval."""

    rate_a: float
    rate_b: float
    difference: float
    low: float
    high: float
    probability_b_better: float
    """Share of the resampled corpora on which b makes fewer errors than a; ties count half."""


def error_rate(
    references: Sequence[str], hypotheses: Sequence[str], unit: Unit = "word", *, seed: int = 0
) -> ErrorRate:
    """Edit distance over the whole corpus, divided by the length of its references.

    Characters include the spaces between words; runs of white space count as one. The interval is
    the percentile bootstrap over utterances, the same for the same seed.
    """
    table = _errors_per_utterance(references, hypotheses, unit)
    substitutions, deletions, insertions, tokens = (int(total) for total in table.sum(0))
    errors = table[:, :3].sum(1)
    low, high = interval(resampled_ratios(np.stack([errors, table[:, 3]], 1), seed))
    total = int(errors.sum())
    return ErrorRate(total, tokens, total / tokens, low, high, substitutions, deletions, insertions)


def compare(
    references: Sequence[str],
    hyp_a: Sequence[str],
    hyp_b: Sequence[str],
    unit: Unit = "word",
    *,
    seed: int = 0,
) -> Comparison:
    """Paired bootstrap: both systems are judged on the same resampled corpora.

    What makes an utterance hard is hard for both, so the interval of the difference is much narrower
    than the systems' own intervals suggest.
    """
    a = _errors_per_utterance(references, hyp_a, unit)
    b = _errors_per_utterance(references, hyp_b, unit)
    more = b[:, :3].sum(1) - a[:, :3].sum(1)
    differences = resampled_ratios(np.stack([more, a[:, 3]], 1), seed)
    low, high = interval(differences)
    tokens = a[:, 3].sum()
    better = float((differences < 0).mean() + (differences == 0).mean() / 2)
    return Comparison(
        float(a[:, :3].sum() / tokens),
        float(b[:, :3].sum() / tokens),
        float(more.sum() / tokens),
        low,
        high,
        better,
    )


def check_pairs(references: Sequence[str], hypotheses: Sequence[str]) -> None:
    """Refuses texts that are not so many references and as many hypotheses."""
    for name, texts in (("references", references), ("hypotheses", hypotheses)):
        if isinstance(texts, str):
            raise TypeError(f"{name} is one string, expected a sequence of them")
    if len(references) != len(hypotheses):
        raise ValueError(f"{len(references)} references and {len(hypotheses)} hypotheses")


def _errors_per_utterance(references: Sequence[str], hypotheses: Sequence[str], unit: Unit) -> Array:
    """(N, 4): substitutions, deletions, insertions and reference tokens of each utterance."""
    if unit not in ("word", "char"):
        raise ValueError(f'unit is {unit!r}, expected "word" or "char"')
    check_pairs(references, hypotheses)
    table = np.zeros((len(references), 4), dtype=np.int64)
    for n, (reference, hypothesis) in enumerate(zip(references, hypotheses, strict=True)):
        wanted, found = _tokens(reference, unit), _tokens(hypothesis, unit)
        counts = kaldialign.edit_distance(wanted, found)
        table[n] = counts["sub"], counts["del"], counts["ins"], len(wanted)
    if table[:, 3].sum() == 0:
        raise ValueError(f"the {len(references)} references hold no {unit}: there is no rate")
    return table


def _tokens(text: str, unit: Unit) -> list[str]:
    words = text.split()
    return words if unit == "word" else list(" ".join(words))
