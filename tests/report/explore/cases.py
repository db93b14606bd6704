"""Posteriors and risks that the page and the library are compared on."""

import ast
import functools
from typing import NamedTuple

import torch
from torch import Tensor

import brctc
from brctc.report.explore.posteriors import Posterior, appendix_b, plain_scores, synthetic, uniform

TOLERANCE = 1e-6  # the promise is 1e-4
FORMULAS = (
    "0",
    "0.3",
    "-factor * frame / T",
    "-factor * (frame - peak) / T",
    "-factor * max(frame - peak, 0) / T",
    "-abs(frame - peak) ^ 1.5 / factor",
    "log(frame <= T - U + token)",
    "min(token - frame, factor, U) * exp(-frame / T)",
    "clamp(frame / T, 0.2, 0.7) * factor - sqrt(token)",
    "(token == U) * -factor * frame / T + (token != U) * factor * frame ^ 0.5 / T",
    "clamp(peak, token, frame) - 2 ^ -token",
)


class Case(NamedTuple):
    posterior: Posterior
    formula: str
    tokens: str
    event: str
    factor: float

    def plain(self) -> dict:
        scores = plain_scores(self.posterior)
        return {
            "scores": [["-Infinity" if value is None else value for value in row] for row in scores],
            "targets": list(self.posterior.targets),
            "fromLogits": self.posterior.from_logits,
            "formula": self.formula,
            "tokens": self.tokens,
            "event": self.event,
            "factor": self.factor,
        }

    def scores(self) -> Tensor:
        """(T, C), with as many digits as the page has."""
        rows = [
            [-torch.inf if value is None else value for value in row] for row in plain_scores(self.posterior)
        ]
        return torch.tensor(rows, dtype=torch.double)


class ByFormula(brctc.BayesRisk):
    """The formula as Python itself reads it: precedence is the same, but for the sign of the power."""

    def __init__(self, case: Case) -> None:
        self.case, self.tokens, self.event = case, case.tokens, case.event

    def log_risk(self, groups: brctc.PathGroups) -> Tensor:
        _, tokens, frames = groups.log_share.shape
        grid = torch.ones(1, tokens, frames, dtype=groups.log_share.dtype)
        names = {
            "frame": grid * groups.frame,
            "T": grid * frames,
            "token": grid * torch.arange(1, tokens + 1)[:, None],
            "U": grid * tokens,
            "peak": grid * groups.peak_frame[:, :, None],
            "factor": grid * self.case.factor,
        }
        return grid * evaluate(self.case.formula, names)


class _Tensors(ast.NodeTransformer):
    """Every number of an expression is a tensor, and every comparison one of 0 and 1."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Call(ast.Name("number", ast.Load()), [node], [])

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return ast.Call(ast.Name("number", ast.Load()), [self.generic_visit(node)], [])


def _as_double(value: float | Tensor) -> Tensor:
    return value.double() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.double)


def evaluate(formula: str, names: dict[str, Tensor]) -> Tensor:
    """As Python's own parser reads it, and torch computes it."""
    tree = ast.fix_missing_locations(_Tensors().visit(ast.parse(formula.replace("^", "**"), mode="eval")))
    functions = {name: getattr(torch, name) for name in ("abs", "exp", "log", "sqrt")}
    functions["number"] = _as_double
    functions["min"] = lambda *values: functools.reduce(torch.minimum, values)
    functions["max"] = lambda *values: functools.reduce(torch.maximum, values)
    functions["clamp"] = lambda value, low, high: torch.minimum(torch.maximum(value, low), high)
    return eval(compile(tree, formula, "eval"), {"__builtins__": {}, **functions, **names})


def library(case: Case, risk: brctc.BayesRisk | None) -> dict:
    """Loss, gradients and groups as brctc has them."""
    scores, targets = case.scores(), torch.tensor([list(case.posterior.targets)])
    lengths = [len(scores)], [targets.shape[1]]
    log_probs = scores.log_softmax(-1) if case.posterior.from_logits else scores
    groups = brctc.path_groups(log_probs[:, None], targets, *lengths, event=case.event)
    found = {"logGroups": groups.log_posterior[0], "peaks": groups.peak_frame[0].double()}
    kinds = {"logProbs": (log_probs, False)}
    if case.posterior.from_logits:
        kinds["logits"] = (scores, True)
    for name, (values, from_logits) in kinds.items():
        leaf = values[:, None].clone().requires_grad_()
        loss = brctc.bayes_risk_ctc_loss(
            leaf, targets, *lengths, risk, reduction="sum", from_logits=from_logits
        )
        loss.backward()
        found |= {f"loss of {name}": loss.detach(), name: leaf.grad[:, 0]}
    return found


def random_posterior(seed: int, frames: int, targets: list[int], classes: int, spread: float) -> Posterior:
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(frames, classes, generator=generator, dtype=torch.double)
    scores[:, 0] += spread
    names = ["blank", *map(str, range(1, classes))]
    return Posterior(f"random-{seed}", "random", "", names, scores, targets)


POSTERIORS = (
    appendix_b(),
    uniform(),
    synthetic(),
    random_posterior(1, 1, [2], 3, 1.0),
    random_posterior(2, 5, [1, 1, 2], 3, 1.0),  # a path or few: five frames for one, blank, one and two
    random_posterior(3, 40, [3, 1, 1, 2, 3, 3], 6, 4.0),
    random_posterior(4, 120, [1 + i * i % 7 for i in range(25)], 9, 6.0),
)
CASES = tuple(
    Case(posterior, formula, tokens, event, factor)
    for posterior in POSTERIORS
    for i, formula in enumerate(FORMULAS)
    for tokens, event, factor in (
        (("last", "end", 10.0), ("each", "start", 3.5))
        if i % 2
        else (("each", "end", 20.0), ("last", "start", -4.0))
    )
)
