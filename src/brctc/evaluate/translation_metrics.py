"""BLEU and chrF of translations, as sacreBLEU defines them, with bootstrap intervals over sentences.

The score of a corpus is computed from sums of counts over its sentences, and so is that of a resampled
corpus: it is never a mean of sentences' scores.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import field_validator

from brctc.config import did_you_mean
from brctc.evaluate.bootstrap import Array, interval, resampled_sums
from brctc.evaluate.error_rate import check_pairs
from brctc.evaluate.metrics import BLEU, METRICS, Difference, MetricConfig, MetricInfo, Score

SEED = 0
"""Of the draws: the same for all systems and every run."""


class TranslationMetric(MetricConfig):
    """What BLEU and chrF have in common. Texts are detokenised, as a reader would see them."""

    title: ClassVar[str]
    detail_title: ClassVar[str] = ""

    lowercase: bool = False
    """Score texts in lower case."""

    def info(self) -> MetricInfo:
        metric = self._sacrebleu()
        metric.corpus_score([""], [[""]])  # a signature counts the references, so there must be one
        note = f"{self.title} by sacreBLEU: {metric.get_signature()}"
        return MetricInfo(self.title, "", 1.0, True, self.detail_title, note)

    def measure(self, references: Sequence[str], hypotheses: Sequence[str]) -> Score:
        counts = self._counts(references, hypotheses)
        (value,) = self._scores(counts.sum(0, keepdims=True))
        low, high = interval(self._scores(resampled_sums(counts, SEED)))
        return Score(float(value), low, high, self._detail(counts.sum(0)))

    def compare(self, references: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Difference:
        a, b = self._counts(references, first), self._counts(references, second)
        sums = resampled_sums(np.hstack([a, b]), SEED)  # one draw for both: the comparison is paired
        width = a.shape[1]
        differences = self._scores(sums[:, width:]) - self._scores(sums[:, :width])
        whole = self._scores(b.sum(0, keepdims=True)) - self._scores(a.sum(0, keepdims=True))
        better = float((differences > 0).mean() + (differences == 0).mean() / 2)
        return Difference(float(whole[0]), *interval(differences), better)

    def _counts(self, references: Sequence[str], hypotheses: Sequence[str]) -> Array:
        """(N, columns): what the score is computed from, of each sentence."""
        check_pairs(references, hypotheses)
        if not any(text.strip() for text in references):
            raise ValueError(f"the {len(references)} references hold no text: there is no {self.title}")
        return np.array(self._count_all(references, hypotheses), dtype=np.int64)

    def _sacrebleu(self) -> Any:
        """sacreBLEU's metric of a corpus."""
        raise NotImplementedError

    def _count_all(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[list[int]]:
        raise NotImplementedError

    def _scores(self, sums: Array) -> Array:
        """(corpora): the score of each row of sums, 0 to 100."""
        raise NotImplementedError

    def _detail(self, sums: Array) -> str:
        return ""


@METRICS.register
class BLEUMetric(TranslationMetric):
    """BLEU of a corpus."""

    title = BLEU
    detail_title = "brevity penalty"

    kind: Literal["bleu"] = "bleu"
    tokenize: str = "13a"
    """How sacreBLEU splits texts into words, by its own names: 13a, intl, char, zh, ..."""

    @field_validator("tokenize")
    @classmethod
    def _is_known(cls, name: str) -> str:
        from sacrebleu.metrics.bleu import BLEU

        if name not in BLEU.TOKENIZERS:
            raise ValueError(f"sacreBLEU has no tokenizer {name!r}{did_you_mean(name, BLEU.TOKENIZERS)}")
        return name

    def _sacrebleu(self, of_sentences: bool = False) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        try:
            return BLEU(self.lowercase, tokenize=self.tokenize, effective_order=of_sentences)
        except (ImportError, RuntimeError) as error:  # some need packages of their own
            why = " ".join(str(error).split())
            raise ValueError(f"the tokenizer {self.tokenize} of sacreBLEU: {why}") from error

    def _count_all(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[list[int]]:
        bleu = self._sacrebleu(of_sentences=True)  # the counts are the same, and it does not warn
        scores = [bleu.sentence_score(h, [r]) for r, h in zip(references, hypotheses, strict=True)]
        return [[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores]

    def _scores(self, sums: Array) -> Array:
        return np.array([self._score(row).score for row in sums])

    def _detail(self, sums: Array) -> str:
        return f"{self._score(sums).bp:.3f}"

    def _score(self, sums: Array) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        found, wanted, *counts = (int(total) for total in sums)
        half = len(counts) // 2
        return BLEU.compute_bleu(counts[:half], counts[half:], found, wanted, smooth_method="exp")


@METRICS.register
class ChrFMetric(TranslationMetric):
    """chrF of a corpus: characters in runs of 1 to 6, recall counting twice as much as precision."""

    title = "chrF"

    kind: Literal["chrf"] = "chrf"

    def _sacrebleu(self) -> Any:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(lowercase=self.lowercase)

    def _count_all(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[list[int]]:
        """Of each order: n-grams of the hypothesis, of the reference, and common ones. sacreBLEU gives out
        the n-grams, but not how often they match."""
        rows = []
        for reference, hypothesis in zip(references, hypotheses, strict=True):
            row = []
            for found, wanted in zip(self._ngrams(hypothesis), self._ngrams(reference), strict=True):
                common = sum(min(count, wanted.get(ngram, 0)) for ngram, count in found.items())
                # a reference too short for an order says nothing about it
                row += [found.total() if wanted else 0, wanted.total(), common]
            rows.append(row)
        return rows

    def _ngrams(self, text: str) -> list[Counter[str]]:
        from sacrebleu.metrics.chrf import CHRF
        from sacrebleu.metrics.helpers import extract_all_char_ngrams

        return extract_all_char_ngrams(text.lower() if self.lowercase else text, CHRF.CHAR_ORDER)

    def _scores(self, sums: Array) -> Array:
        """The F-score of the mean precision and the mean recall, over the orders that there are."""
        from sacrebleu.metrics.chrf import CHRF

        found, wanted, common = np.moveaxis(sums.reshape(len(sums), -1, 3).astype(float), 2, 0)
        known = (found > 0) & (wanted > 0)
        orders = np.maximum(known.sum(1), 1)
        precision = (common / np.where(known, found, np.inf)).sum(1) / orders
        recall = (common / np.where(known, wanted, np.inf)).sum(1) / orders
        weight = CHRF.BETA**2
        bottom = weight * precision + recall
        return 100 * (1 + weight) * precision * recall / np.where(bottom > 0, bottom, 1)
