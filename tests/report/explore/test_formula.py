"""Formulas: what they mean, what is refused and why, and what they are in Python."""

import math
import random

import pytest
import torch

from brctc.report.explore.page import FOLDER
from tests.report.explore.cases import evaluate
from tests.report.explore.scripts import run_scripts

VALUES = ({"frame": 7, "T": 40, "token": 2, "U": 5, "peak": 9, "factor": 2.5},)
VALUES += ({"frame": 1, "T": 3, "token": 1, "U": 1, "peak": 1, "factor": -0.5},)

COMPUTE = """
return input.formulas.map((formula) => {
  const tree = parseFormula(formula);
  return {
    values: input.values.map((values) => compute(tree, values)),
    python: isConstant(tree) ? `frame.new_tensor(${pythonOf(tree).text})` : pythonOf(tree).text,
  };
});
"""
REFUSE = """
return input.map((formula) => {
  try {
    parseFormula(formula);
    return {};
  } catch (error) {
    return { message: error instanceof FormulaError ? error.message : `a fault: ${error}` };
  }
});
"""


def check(formulas):
    """The page's values, those of Python's own parser, and those of the Python that the page shows."""
    names = [
        {name: torch.tensor(float(v), dtype=torch.double) for name, v in values.items()} for values in VALUES
    ]
    found = run_scripts(COMPUTE, {"formulas": formulas, "values": VALUES})
    for formula, page in zip(formulas, found, strict=True):
        for values, value in zip(names, page["values"], strict=True):
            expected = pytest.approx(evaluate(formula, values).item(), rel=1e-9, nan_ok=True)
            assert float(value) == expected, formula
            shown = eval(page["python"], {"torch": torch, "math": math, **values})
            assert shown.item() == expected, (formula, page["python"])


def test_precedence_and_functions():
    check(
        [
            "-2 ^ 2",
            "2 ^ 3 ^ 2",
            "2 ^ -1",
            "(-frame) ^ 2",
            "-frame ^ 2 * token",
            "frame - token - 1",
            "frame - (token - 1)",
            "frame / token / T",
            "frame / (token / T)",
            "frame - -token",
            "+frame * -2",
            "--frame",
            "1 - frame < token + 3",
            "(frame < T) * (token >= 2) + 2 * (U != 5)",
            "(frame < T) == (peak > 1)",
            "min(frame, 3) + max(2, token, U) - min(4, 3)",
            "max(frame, token * 4) - min(T, U, peak)",
            "clamp(frame, 2, 5) + clamp(3, token, U) + clamp(frame, token, 4)",
            "abs(-frame) + exp(-token) - log(T) * sqrt(U)",
            "log(frame > 100)",
            "log(0) + frame",
            "1e3 * frame + .5 + 2. - 1.5e-2",
            "1 / 3 * frame",
            "frame / 0",
            "1 ^ (1 / 0) * frame",
            "sqrt(-frame)",
            "12345678901234567890 * frame",
            "999999 * 999999 * 999999 * 999999 * frame",
            "3",
            "-(1 + 2) / 4",
            "exp(2) ^ 0.5",
            "(2 * 3 - 7) ^ token",
            "factor",
        ]
    )


def some_formula(chance, depth=4):
    """Any formula, as nested as that."""
    if depth == 0 or chance.random() < 0.15:
        return chance.choice(["0", "1", "2", "0.5", "3.25", "1e-2", "7", *VALUES[0], *VALUES[0]])

    def some():
        return some_formula(chance, depth - 1)

    kinds = [
        lambda: f"{some()} {chance.choice('+-*/^')} {some()}",
        lambda: f"({some()})",
        lambda: f"-{some()}",
        lambda: f"({some()} {chance.choice(['<', '<=', '>', '>=', '==', '!='])} {some()})",
        lambda: f"{chance.choice(['abs', 'exp', 'log', 'sqrt'])}({some()})",
        lambda: f"{chance.choice(['min', 'max'])}({some()}, {some()})",
        lambda: f"clamp({some()}, {some()}, {some()})",
    ]
    return chance.choices(kinds, [2, 1, 1, 1, 1, 1, 1])[0]()


def test_any_formula_is_read_as_python_reads_it():
    chance = random.Random(0)
    formulas = [some_formula(chance) for _ in range(500)]
    assert len(set(formulas)) > 300
    check([formula for formula in formulas if len(formula) <= 500])


WRONG = {
    "": "Type a formula, such as -factor * frame / T.",
    "   ": "Type a formula, such as -factor * frame / T.",
    "fram * 2": 'There is no "fram": did you mean "frame"?',
    "t": 'There is no "t": did you mean "T"?',
    "lambda": 'There is no "lambda": there are frame, T, token, U, peak, factor.',
    "constructor": 'There is no "constructor": there are frame, T, token, U, peak, factor.',
    "__proto__": 'There is no "__proto__": there are frame, T, token, U, peak, factor.',
    "2 $ frame": '"$" at position 3 is not part of a formula.',
    "frame = 3": '"=" at position 7 is not part of a formula: to compare, write "==".',
    "frame; alert(1)": '";" at position 6 is not part of a formula.',
    "'a'": '"\'" at position 1 is not part of a formula.',
    "frame *": 'A number or a name is missing between "*" and the end.',
    "frame * / 2": 'A number or a name is missing between "*" and "/" at position 9.',
    "* 2": 'A formula cannot begin with "*".',
    "()": 'A number or a name is missing between "(" and ")" at position 2.',
    "(frame": 'A ")" is missing at the end.',
    "frame)": 'The ")" at position 6 has no "(" in front of it.',
    "2 frame": '"frame" at position 3 was not expected: is there an operator missing in front of it?',
    "(2 3)": '"3" at position 4 was not expected: is there an operator missing in front of it?',
    "1.2.3": '".3" at position 4 was not expected: is there an operator missing in front of it?',
    "1 < frame < 3": "Comparisons do not chain: write (a < b) * (b < c) for a < b < c.",
    "max": '"max" is a function: write max(a, b).',
    "max(1)": '"max" has 1 values in it: write max(a, b).',
    "log()": '"log" has 0 values in it: write log(a).',
    "clamp(frame, 2)": '"clamp" has 2 values in it: write clamp(a, lowest, highest).',
    "factor(2)": '"factor" is not a function: to multiply, write factor * (...).',
    "max(1, )": 'A number or a name is missing between "," and ")" at position 8.',
    "語": '"語" at position 1 is not part of a formula.',
    "x" * 501: "The formula has 501 characters, at most 500 are read.",
    "1" + "0" * 400: None,  # an infinity, which is a value
    "(" * 250 + "1" + ")" * 249: 'A ")" is missing at the end.',
    "-" * 499 + "1": None,
}


def test_what_is_refused_and_why():
    found = run_scripts(REFUSE, list(WRONG))
    assert [page.get("message") for page in found] == list(WRONG.values())


def test_no_text_is_a_fault():
    chance = random.Random(1)
    signs = [*"framet0.1+-*/^()<=, eT!\n\t\\\"'`$\u202e語\0", "max(", "**"]
    texts = ["".join(chance.choices(signs, k=chance.randrange(25))) for _ in range(2000)]
    found = run_scripts(REFUSE, texts)
    assert any(page == {} for page in found)
    for text, page in zip(texts, found, strict=True):
        assert not page.get("message", "").startswith("a fault"), (text, page)


def test_nothing_runs_formulas_as_code():
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        assert not any(
            word in text for word in ("eval(", "Function(", "innerHTML", "outerHTML", "insertAdjacent")
        )
