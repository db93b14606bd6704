"""BLEU and chrF: sacreBLEU's own command, its paired test, and intervals over sentences."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from brctc.evaluate import METRICS, default_metrics
from brctc.evaluate.bootstrap import RESAMPLES
from brctc.evaluate.translation_metrics import BLEUMetric, ChrFMetric

TEXT = "Über die Straße gehen wir, weil der Zug (ICE 571) um 8:45 Uhr fährt! Ja? œuvre 東京 I.B.M. 3,5 %"
WORDS = TEXT.split()
KINDS = [BLEUMetric, ChrFMetric]


def sentences(count: int, seed: int, shortest: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(shortest, 25))) for _ in range(count)]


def spoilt(texts: list[str], seed: int, share: float) -> list[str]:
    """Words replaced, left out, said twice, or in another case; some sentences are empty."""
    rng = random.Random(seed)

    def spoil(word: str) -> str:
        if rng.random() > share:
            return word
        return rng.choice([rng.choice(WORDS), "", f"{word} {word}", word.swapcase()])

    return [" ".join(" ".join(map(spoil, text.split())).split()) * (rng.random() > 0.02) for text in texts]


REFERENCES = sentences(150, 0, shortest=1)
CASES = {
    "good": (REFERENCES, spoilt(REFERENCES, 1, 0.2)),
    "bad": (REFERENCES, spoilt(REFERENCES, 2, 0.8)),
    "unrelated": (REFERENCES[:40], sentences(40, 3)),
    "the same": (REFERENCES, REFERENCES),
    "short ones": (["a b", "Ö", "abc", "d"], ["a", "ö", "", "d e f g h"]),
    "empty": (["ein Satz", "und noch einer"], ["", ""]),
    "an empty reference": (["", "Noch ein Satz ist hier."], ["was", "noch ein Satz ist hier"]),
}


def command_line(references, hypotheses, folder, *options):
    """What `sacrebleu` says of BLEU and chrF, with all decimals that it has, and their signatures."""
    for name, texts in (("ref", references), ("hyp", hypotheses)):
        (folder / name).write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    options = ("ref", "-i", "hyp", "-m", "bleu", "chrf", "-w", "4", *options)
    run = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *options], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


@pytest.mark.parametrize(("case", "lowercase"), [*((case, False) for case in CASES), ("good", True)])
def test_the_same_as_sacrebleus_command(case, lowercase, tmp_path):
    references, hypotheses = CASES[case]
    options = ["--lowercase", "--chrf-lowercase"] if lowercase else []
    wanted = command_line(references, hypotheses, tmp_path, *options)
    for kind, said in zip(KINDS, wanted, strict=True):
        metric = kind(lowercase=lowercase)
        found = metric.measure(references, hypotheses)
        assert round(found.value, 4) == pytest.approx(said["score"], abs=1.01e-4)
        assert found.low <= found.value <= found.high
        assert said["signature"] in metric.info().note


@pytest.mark.parametrize("tokenize", ["intl", "char", "none", "zh"])
def test_other_tokenizers(tokenize):
    references, hypotheses = CASES["good"]
    metric = BLEUMetric(tokenize=tokenize)
    wanted = BLEU(tokenize=tokenize).corpus_score(hypotheses, [references]).score
    assert metric.measure(references, hypotheses).value == pytest.approx(wanted, abs=1e-9)
    assert f"tok:{tokenize}" in metric.info().note


def test_brevity_penalty_is_shown():
    references, hypotheses = ["a b c d e f g h"], ["a b c d e f"]
    assert BLEUMetric().measure(references, hypotheses).detail == f"{np.exp(1 - 8 / 6):.3f}"
    assert "brevity penalty 0.717" in BLEUMetric().describe(references, hypotheses)


@pytest.mark.parametrize("kind", KINDS)
def test_resampled_corpora_are_scored_as_corpora(kind, monkeypatch):
    """sacreBLEU draws the same sentences from the same seed; its interval is a mean and a half width."""
    references, hypotheses = CASES["good"]
    monkeypatch.setenv("SACREBLEU_SEED", "0")
    theirs = {BLEUMetric: BLEU, ChrFMetric: CHRF}[kind]()
    theirs = theirs.corpus_score(hypotheses, [references], n_bootstrap=RESAMPLES)
    found = kind().measure(references, hypotheses)
    assert (found.high - found.low) / 2 == pytest.approx(theirs._ci, rel=0.01)
    assert kind().measure(references, hypotheses) == found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "second"), [(0.30, 0.34), (0.34, 0.30), (0.3, 0.6)])
def test_pairs_agree_with_sacrebleus_test(kind, first, second):
    a, b = spoilt(REFERENCES, 5, first), spoilt(REFERENCES, 6, second)
    metrics = {"theirs": {BLEUMetric: BLEU, ChrFMetric: CHRF}[kind]()}
    _, scores = PairedTest([("a", a), ("b", b)], metrics, [REFERENCES], "bs", n_samples=RESAMPLES)()
    (theirs_a, theirs_b), *_ = (found for name, found in scores.items() if name != "System")
    found = kind().compare(REFERENCES, a, b)
    assert found.value == pytest.approx(theirs_b.score - theirs_a.score, abs=1e-9)
    assert found.low <= found.value <= found.high
    # theirs is the tail of the absolute differences around their mean: about ours, where there is a sign
    doubt = min(found.probability_better, 1 - found.probability_better)
    assert doubt == pytest.approx(theirs_b.p_value, abs=0.06)
    assert (found.probability_better > 0.5) == (found.value > 0)
    other = kind().compare(REFERENCES, b, a)
    assert other.value == -found.value
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low))
    assert other.probability_better == pytest.approx(1 - found.probability_better)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_judged_on_the_same_corpora(kind):
    """What is hard for one is hard for the other: the difference is known better than the scores."""
    a = spoilt(REFERENCES, 5, 0.3)
    b = [text.replace("Uhr", "uhr") for text in a]
    own, difference = kind().measure(REFERENCES, a), kind().compare(REFERENCES, a, b)
    assert difference.high < 0
    assert difference.probability_better == 0
    assert difference.high - difference.low < (own.high - own.low) / 3


@pytest.mark.parametrize("kind", KINDS)
def test_identical_systems(kind):
    hypotheses = CASES["good"][1]
    found = kind().compare(REFERENCES, hypotheses, hypotheses)
    assert (found.value, found.low, found.high, found.probability_better) == (0, 0, 0, 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_named(kind):
    title = kind().info().title
    with pytest.raises(ValueError, match=f"the 0 references hold no text: there is no {title}"):
        kind().measure([], [])
    with pytest.raises(ValueError, match=f"the 2 references hold no text: there is no {title}"):
        kind().measure(["", " "], ["a", "b"])
    with pytest.raises(ValueError, match="2 references and 1 hypotheses"):
        kind().measure(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="1 references and 2 hypotheses"):
        kind().compare(["a"], ["a"], ["a", "b"])
    with pytest.raises(TypeError, match="hypotheses is one string"):
        kind().measure(["a"], "a")


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(ValueError, match=r"sacreBLEU has no tokenizer '13b': did you mean '13a'\?"):
        METRICS.parse({"kind": "bleu", "tokenize": "13b"})


def test_a_tokenizer_that_needs_a_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(ValueError, match=r"the tokenizer ja-mecab of sacreBLEU: .*sacrebleu\[ja\]"):
        BLEUMetric(tokenize="ja-mecab").info()


def test_translations_have_metrics_of_their_own():
    assert list(default_metrics("translation", "char")) == ["bleu", "chrf"]
    assert list(default_metrics("translation", "bpe")) == ["bleu", "chrf"]
    (errors,) = default_metrics("transcript", "char").values()
    assert errors == METRICS.parse({"kind": "error-rate", "unit": "char"})
    assert default_metrics("transcript", "bpe")["error-rate"] == METRICS.parse({"kind": "error-rate"})
