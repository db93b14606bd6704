"""Systems learn with the losses of a stage, in either precision."""

import pytest
import torch

from brctc.models import TrimConfig
from brctc.train.objective import Objective
from brctc.train.risks import EarlyEmissionConfig
from tests.models.toys import (
    MEMORIES,
    learnable_batch,
    small_system,
    toy_batch,
    toy_config,
    toy_online,
    toy_online_config,
)
from tests.train.terms import DECODERS, online_terms, terms


def learn(objective, batch):
    """The losses before and after thirty steps on one batch."""
    optimizer = torch.optim.Adam(objective.parameters(), 1e-2)
    before = after = objective(batch, 0)
    for step in range(30):
        after = objective(batch, step)
        optimizer.zero_grad()
        after["loss"].backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 5.0)
        optimizer.step()
    return before, after


@pytest.mark.parametrize("positions", ["relative", "sinusoidal"])
@pytest.mark.parametrize("decoders", DECODERS)
def test_systems_learn(decoders, positions):
    """Thirty steps on one batch: every part of the loss falls."""
    config = toy_config(dim=32, positions=positions, subsampling=2, dropout=0.0, **decoders)
    objective = Objective(small_system(config), terms(decoders))
    before, after = learn(objective, learnable_batch())
    assert after["loss"] < 0.3 * before["loss"], (before, after)
    for name in objective.names(0):
        assert after[name] < before[name], name


@MEMORIES
def test_an_online_system_learns(memory):
    config = toy_online_config(attention=True, dim=32, subsampling=2, dropout=0.0, memory=memory)
    before, after = learn(Objective(small_system(config), online_terms()), learnable_batch())
    assert after["loss"] < 0.5 * before["loss"], (before, after)
    assert after["ctc"] < 0.5 * before["ctc"]


@pytest.mark.parametrize("kernel_size", [None, 7])
@MEMORIES
def test_all_parameters_of_an_online_system_learn(kernel_size, memory):
    system = toy_online(attention=True, kernel_size=kernel_size, memory=memory)
    Objective(system, online_terms(risk=EarlyEmissionConfig(factor=2.0)))(toy_batch(), 0)["loss"].backward()
    for name, parameter in system.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-9, name


def check_bfloat16(objective):
    batch = learnable_batch()
    exact = objective.eval()(batch, 0)
    with torch.autocast("cpu", torch.bfloat16):
        rough = objective(batch, 0)
    rough["loss"].backward()
    assert not torch.equal(rough["loss"], exact["loss"])
    torch.testing.assert_close(rough["loss"], exact["loss"], rtol=0.05, atol=0)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in objective.parameters())


@pytest.mark.parametrize("decoders", DECODERS)
def test_bfloat16_autocast(decoders):
    system = small_system(toy_config(**decoders))
    check_bfloat16(Objective(system, terms(decoders), TrimConfig(margin=100)))


@MEMORIES
def test_bfloat16_autocast_of_an_online_system(memory):
    config = toy_online_config(attention=True, memory=memory)
    check_bfloat16(Objective(small_system(config), online_terms()))
