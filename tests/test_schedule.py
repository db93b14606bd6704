"""A risk that follows the steps of any training loop."""

import io

import pytest
import torch

import brctc

POINTS = [(2, 0), (4, 10), (8, 2)]
EXPECTED = [0, 0, 0, 5, 10, 8, 6, 4, 2, 2, 2]


def test_the_factor_follows_the_points():
    criterion = brctc.BayesRiskCTCLoss()
    schedule = brctc.RiskSchedule(criterion, brctc.EarlyFinish, POINTS)
    found = []
    for _ in EXPECTED:
        found.append((schedule.factor, criterion.risk))
        schedule.step()
    assert found == [(f, brctc.EarlyFinish(float(f)) if f else None) for f in EXPECTED]
    constant = brctc.RiskSchedule(criterion, brctc.EarlyEmission, 3)
    constant.step()
    assert criterion.risk == brctc.EarlyEmission(3.0)


def test_a_reloaded_run_goes_on_with_the_right_factor():
    """As a checkpoint keeps it, read as weights are."""
    schedule = brctc.RiskSchedule(brctc.BayesRiskCTCLoss(), brctc.EarlyEmission, POINTS)
    for _ in range(5):
        schedule.step()
    file = io.BytesIO()
    torch.save({"schedule": schedule.state_dict()}, file)
    file.seek(0)
    criterion = brctc.BayesRiskCTCLoss()
    again = brctc.RiskSchedule(criterion, brctc.EarlyEmission, 0.0)
    again.load_state_dict(torch.load(file, weights_only=True)["schedule"])
    assert criterion.risk == brctc.EarlyEmission(8.0)
    again.step()
    assert again.factor == 6
    assert repr(again) == "RiskSchedule(EarlyEmission, ((2, 0.0), (4, 10.0), (8, 2.0)), last_step=6)"
    again.step(4)
    assert criterion.risk == brctc.EarlyEmission(10.0)


def test_it_changes_what_is_learnt():
    criterion = brctc.BayesRiskCTCLoss(from_logits=True)
    schedule = brctc.RiskSchedule(criterion, lambda f: brctc.EarlyEmission(f) + brctc.Within(1, 20), POINTS)
    batch = torch.randn(20, 2, 5), torch.tensor([[1, 2], [3, 3]]), [20, 18], [2, 2]
    plain = criterion(*batch)
    schedule.step(4)
    expected = brctc.EarlyEmission(10.0) + brctc.Within(1, 20)
    assert criterion(*batch) == brctc.bayes_risk_ctc_loss(*batch, expected, from_logits=True) != plain


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        ([(0, 1), (0, 2)], "steps must rise, but 0 follows 0"),
        ([(0.5, 1)], "must be a whole number from 0"),
        ([], "got an empty list"),
        ([(0, -1)], "expected a finite number from 0"),
        ([3], "got the point 3"),
        ("much", "got 'much'"),
    ],
)
def test_points_that_make_no_sense_are_refused(factor, message):
    with pytest.raises(ValueError, match=message):
        brctc.RiskSchedule(brctc.BayesRiskCTCLoss(), brctc.EarlyFinish, factor)


def test_other_arguments_are_checked_too():
    criterion = brctc.BayesRiskCTCLoss()
    with pytest.raises(TypeError, match="criterion must have a risk"):
        brctc.RiskSchedule(torch.nn.CTCLoss(), brctc.EarlyFinish, 3.0)  # pyright: ignore
    with pytest.raises(
        TypeError, match=r"risk must make a risk of a factor, .* got EarlyFinish\(factor=3.0\)"
    ):
        brctc.RiskSchedule(criterion, brctc.EarlyFinish(3.0), 3.0)  # pyright: ignore
    schedule = brctc.RiskSchedule(criterion, brctc.EarlyFinish, 3.0)
    with pytest.raises(ValueError, match="step is -1"):
        schedule.step(-1)
    with pytest.raises(ValueError, match=r"lacks \['points'\]"):
        schedule.load_state_dict({"last_step": 3})
