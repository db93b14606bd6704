"""Numbers that Python and C++ both have are the same ones."""

import re
from pathlib import Path

import pytest
import torch

from brctc.kernels.ctc.closed_form import RiskKind
from brctc.kernels.ctc.groups import PEAK_TOLERANCE
from brctc.kernels.tensors import SMALLEST_LOG
from brctc.kernels.transducer.inputs import NUMBERS_PER_CELL

NATIVE = Path(__file__).parents[2] / "native"


def in_source(file, pattern):
    found = re.search(pattern, (NATIVE / file).read_text())
    assert found, f"{file} has no {pattern}"
    return found[1]


def test_kinds_of_risk():
    names = in_source("kernels.h", r"enum class Risk \{ (.*?) \}").split(", ")
    assert names == [kind.name.lower() for kind in sorted(RiskKind)]
    assert sorted(RiskKind) == list(range(len(names)))


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("emission_loss.h", "peak_tolerance", PEAK_TOLERANCE),
        ("emissions.h", "smallest_log", SMALLEST_LOG),
        ("transducer.h", "numbers_per_cell", NUMBERS_PER_CELL),
    ],
)
def test_constants(file, name, value):
    assert float(in_source(file, rf"constexpr \w+ {name} = (\S+);")) == value


def test_operators_refuse_other_numbers():
    scores, lengths = torch.randn(4, 1, 3), torch.tensor([4])
    targets, tokens = torch.tensor([[1]]), torch.tensor([1])
    for risk, factor in ((len(RiskKind), 1.0), (-1, 1.0), (1, float("nan"))):
        with pytest.raises(ValueError, match="is not a closed form"):
            torch.ops.brctc.loss_and_gradient(
                scores, targets, lengths, tokens, 0, True, False, risk, factor, False
            )
