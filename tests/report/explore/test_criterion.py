"""The page's numbers are the library's: groups, loss and gradient, of its own risks and of formulas."""

import itertools
import re

import pytest
import torch

import brctc
from tests.paths import Enumeration
from tests.report.explore.cases import (
    CASES,
    POSTERIORS,
    TOLERANCE,
    ByFormula,
    Case,
    library,
    random_posterior,
)
from tests.report.explore.scripts import run_scripts

ALL = """
return input.map(({ formula, ...rest }) => {
  const scores = rest.scores.map((row) => row.map(Number));
  const posterior = readPosterior({ ...rest, scores });
  const setting = { ...rest, formula, tree: parseFormula(formula) };
  const risk = findRisk(setting);
  const shape = { T: scores.length, U: rest.targets.length, fromLogits: rest.fromLogits };
  const code = pythonOfLoss(shape, setting, risk ? risk.library : null);
  const python = `${pythonOfPosterior(posterior)}\\n${code}`;
  try {
    return { ...criterion(posterior, setting), python, library: risk ? risk.library : null };
  } catch (error) {
    return { refused: error.message };
  }
});
"""


def page_of(cases):
    return run_scripts(ALL, [case.plain() for case in cases])


@pytest.fixture(scope="module")
def pages():
    return list(zip(CASES, page_of(CASES), strict=True))


def assert_same(page, expected):
    for name, gradient in page["gradient"].items():
        assert (gradient is None) == (name not in expected)
        if gradient is not None:
            torch.testing.assert_close(
                page["loss"], expected[f"loss of {name}"].item(), rtol=0, atol=TOLERANCE
            )
            found = torch.tensor(gradient, dtype=torch.double)
            torch.testing.assert_close(found, expected[name], rtol=0, atol=TOLERANCE)
    for name in ("logGroups", "peaks"):
        found = torch.tensor(page[name], dtype=torch.double)
        torch.testing.assert_close(found, expected[name], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda posterior: posterior.key)
def test_formulas(pages, posterior):
    those = [(case, page) for case, page in pages if case.posterior is posterior]
    assert len(those) >= 20
    for case, page in those:
        assert "refused" not in page, (case, page)
        assert_same(page, library(case, ByFormula(case)))


@pytest.mark.parametrize("factor", [0.0, 0.1, 10.0, 20.0, -7.5, 200.0])
def test_the_risks_of_the_library(factor):
    kinds = {
        brctc.EarlyFinish: ("-factor * frame / T", "last"),
        brctc.EarlyEmission: ("-factor * (frame - peak) / T", "each"),
    }
    for kind, (formula, tokens) in kinds.items():
        cases = [Case(posterior, formula, tokens, "end", factor) for posterior in POSTERIORS]
        for case, page in zip(cases, page_of(cases), strict=True):
            assert page["library"] == kind.__name__
            assert_same(page, library(case, kind(factor)))


def test_plain_ctc():
    cases = [Case(posterior, "0", "last", "end", 10.0) for posterior in POSTERIORS]
    for case, page in zip(cases, page_of(cases), strict=True):
        assert page["library"] == "none"
        assert_same(page, library(case, None))


def test_every_path_by_hand():
    """Small lattices by their definition, which no recursion of anybody's is in."""
    risk = "-factor * (frame - 2 * token) ^ 2 / T"
    small = [
        random_posterior(seed, 6, target, 3, 2.0)
        for seed, target in enumerate(([1], [1, 2], [2, 2], [1, 2, 1]))
    ]
    cases = [
        Case(*each, 1.5) for each in itertools.product(small, [risk], ["last", "each"], ["start", "end"])
    ]
    for case, page in zip(cases, page_of(cases), strict=True):
        logits = case.scores().requires_grad_()
        enumeration = Enumeration(logits.log_softmax(-1), list(case.posterior.targets))
        frame, token = torch.arange(1, 7), torch.arange(1, len(case.posterior.targets) + 1)[:, None]
        loss = enumeration.loss(case.tokens, case.event, -1.5 * (frame - 2 * token) ** 2 / 6)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert page["loss"] == pytest.approx(loss.item(), abs=1e-10)
        found = torch.tensor(page["gradient"]["logits"], dtype=torch.double)
        torch.testing.assert_close(found, gradient, rtol=0, atol=1e-10)


def test_a_forbidden_token_has_no_gradient():
    """As in the library: the loss is infinite, and nothing can be learnt from it."""
    case = Case(POSTERIORS[2], "log(frame < 3)", "each", "end", 1.0)
    (page,) = page_of([case])
    expected = library(case, ByFormula(case))
    assert page["loss"] == expected["loss of logits"].item() == torch.inf
    for name in ("logits", "logProbs"):
        assert not torch.tensor(page["gradient"][name]).any()
        assert not expected[name].any()


@pytest.mark.parametrize(
    ("formula", "tokens", "message"),
    [
        ("log(frame - 20)", "each", "The log-risk is not a number for token 1 at frame 1."),
        ("1 / (frame - 30)", "last", "The log-risk is +infinity for token 5 at frame 30."),
    ],
)
def test_values_that_are_refused(formula, tokens, message):
    case = Case(POSTERIORS[2], formula, tokens, "end", 1.0)
    (page,) = page_of([case])
    assert page == {"refused": message}
    token, frame = (int(number) for number in re.findall(r"\d+", message))
    with pytest.raises(ValueError, match=rf"for token {token - 1} of utterance 0 at frame tau={frame}"):
        library(case, ByFormula(case))


def test_the_python_of_the_page(pages):
    """What it shows gives what it shows, on its own."""
    seen = set()
    for _, page in pages:
        names: dict = {}
        exec(page["python"], names)
        assert names["loss"].item() == pytest.approx(page["loss"], abs=TOLERANCE)
        seen.add(re.search(r"BayesRiskCTCLoss\((brctc\.\w+|\w+)", page["python"])[1])
    assert seen == {"Formula", "reduction"}
    case = Case(POSTERIORS[1], "-factor*frame/T", "last", "end", 10.0)
    (page,) = page_of([case])
    assert (
        'brctc.BayesRiskCTCLoss(brctc.EarlyFinish(10.0), reduction="sum", from_logits=True)' in page["python"]
    )
    exec(page["python"], names)
    assert names["loss"].item() == pytest.approx(page["loss"], abs=TOLERANCE)
