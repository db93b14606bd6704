"""The learning rate and the risk over the steps of a stage."""

import math

import pytest

from brctc import DelayPenalty, EarlyEmission, EarlyFinish
from brctc.train import RISKS, OptimiserConfig, learning_rate
from brctc.train.factors import factor_at, is_zero

DESIGN = ((0, 0.0), (150, 0.0), (300, 25.0), (800, 25.0), (2500, 6.0))


def test_inverse_square_root():
    optimiser = OptimiserConfig(peak_rate=3e-4, warmup_steps=25000)
    rates = [learning_rate(optimiser, step, 10**6) for step in range(100_000)]
    assert max(rates) == rates[24_999] == pytest.approx(3e-4)
    assert rates[0] == pytest.approx(3e-4 / 25000)
    assert rates[12_499] == pytest.approx(1.5e-4)
    assert rates[99_999] == pytest.approx(1.5e-4)  # four times the warm-up: half the peak
    assert rates[:25_000] == sorted(rates[:25_000])
    assert rates[25_000:] == sorted(rates[25_000:], reverse=True)


def test_no_warm_up():
    optimiser = OptimiserConfig(peak_rate=1.0, warmup_steps=0)
    assert [learning_rate(optimiser, step, 9) for step in (0, 3)] == [1.0, 0.5]


def test_hold_cosine():
    optimiser = OptimiserConfig(
        peak_rate=2e-3, warmup_steps=100, schedule="hold-cosine", hold=0.3, floor=0.02
    )
    rates = [learning_rate(optimiser, step, 4500) for step in range(4500)]
    assert rates[49] == pytest.approx(1e-3)
    assert rates[99:1350] == [2e-3] * 1251
    assert rates[1350] < 2e-3
    middle = 1350 + (4500 - 1350) // 2 - 1
    assert rates[middle] == pytest.approx(2e-3 * 0.51)
    assert rates[-1] == pytest.approx(2e-3 * 0.02)
    assert learning_rate(optimiser, 9999, 4500) == pytest.approx(2e-3 * 0.02)


def test_the_warm_up_is_part_of_what_is_held():
    optimiser = OptimiserConfig(peak_rate=1.0, warmup_steps=50, schedule="hold-cosine", hold=0.1, floor=0.0)
    rates = [learning_rate(optimiser, step, 100) for step in range(100)]
    assert max(rates) == rates[49] == 1.0
    assert rates[50:] == sorted(rates[50:], reverse=True)
    assert rates[-1] == 0


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0), (150, 0), (225, 12.5), (300, 25), (799, 25), (800, 25), (1650, 15.5), (2500, 6), (9000, 6)],
)
def test_risk_points(step, factor):
    assert factor_at(DESIGN, step) == pytest.approx(factor)


def test_points_that_begin_later_are_level_before():
    assert factor_at(((10, 3.0), (20, 5.0)), 0) == 3.0
    assert factor_at(((10, 3.0),), 50) == 3.0


def risk(kind, factor):
    return RISKS.parse({"kind": kind, "factor": factor})


def test_risk_of_a_step():
    rising = risk("early-finish", [[10, 0], [20, 5]])
    assert rising.at(5) is None  # factor 0 is plain CTC
    assert rising.at(15) == EarlyFinish(2.5)
    assert risk("early-emission", 20).at(5) == EarlyEmission(20.0)
    assert risk("delay-penalty", [[0, 0], [10, 0.2]]).at(5) == DelayPenalty(0.1)
    assert RISKS.parse({}).at(5) is None
    assert math.isclose(factor_at(rising.factor, 99), 5)


def test_factors_that_are_nothing():
    assert is_zero(0.0)
    assert is_zero(((0, 0.0), (5, 0.0)))
    assert not is_zero(((0, 0.0), (5, 0.1)))
