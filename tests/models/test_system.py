"""Systems as a whole: what they minimise, what trimming may not break, and that they learn."""

import math

import pytest
import torch

import brctc
from brctc.align import frames_needed
from brctc.models import Objective, System, TrimConfig
from tests.models.toys import (
    CLASSES,
    FEATURES,
    TRIM,
    Batch,
    finish_early,
    learn,
    learnable_batch,
    toy_batch,
    toy_config,
    toy_system,
)

DECODERS = [
    pytest.param({}, id="ctc"),
    pytest.param({"attention": True}, id="attention"),
    pytest.param({"transducer": True}, id="transducer"),
]


@pytest.mark.parametrize(
    ("decoders", "objective", "weights"),
    [
        ({}, Objective(), {"inter_ctc": 0.3, "ctc": 0.7}),
        ({"attention": True}, Objective(), {"inter_ctc": 0.09, "ctc": 0.21, "attention": 0.7}),
        ({"transducer": True}, Objective(), {"inter_ctc": 0.15, "ctc": 0.35, "transducer": 1.0}),
        ({"attention": True}, Objective(ctc_weight=1, attention_weight=0), {"inter_ctc": 0.3, "ctc": 0.7}),
        ({}, Objective(inter_weight=0), {"ctc": 1.0}),
        ({}, Objective(peak_first=0.1), {"inter_ctc": 0.3, "ctc": 0.7, "peak_first": 0.07}),
        ({}, Objective(inter_weight=1, ctc_weight=2), {"inter_ctc": 2.0}),
    ],
)
def test_weights_are_those_of_table_3_unless_told(decoders, objective, weights):
    assert objective.weights(toy_config(**decoders)) == pytest.approx(weights)


def test_impossible_objectives():
    with pytest.raises(ValueError, match=r"inter_weight is 1\.5"):
        Objective(inter_weight=1.5)
    with pytest.raises(ValueError, match="attention_weight is -1"):
        Objective(attention_weight=-1)
    with pytest.raises(ValueError, match="ctc_weight is nan"):
        Objective(ctc_weight=math.nan)
    with pytest.raises(ValueError, match="peak_first is -1"):
        Objective(peak_first=-1.0)
    with pytest.raises(ValueError, match="but the system has no transducer part"):
        Objective(transducer_weight=1.0).weights(toy_config(attention=True))
    with pytest.raises(ValueError, match="give all three"):
        Objective(ctc_weight=1.0).weights(toy_config(attention=True, transducer=True))
    with pytest.raises(ValueError, match="every weight is 0"):
        Objective(ctc_weight=0.0).weights(toy_config())


@pytest.mark.parametrize("trim", [None, TRIM], ids=["whole", "trimmed"])
@pytest.mark.parametrize("decoders", DECODERS)
def test_loss_is_the_weighed_mean_over_utterances(decoders, trim):
    """Part by part, for the batch and for each utterance by itself; gradients likewise."""
    system = toy_system(**decoders)
    batch = toy_batch()
    finish_early(system, batch)
    objective = Objective(
        brctc.EarlyFinish(3.0), brctc.EarlyFinish(2.0) if not trim else None, trim, peak_first=0.2
    )
    found = system(batch, objective)
    weights = objective.weights(system.config)
    assert set(found) == {"loss", *weights} | ({"factor"} if trim else set())
    total = sum(weight * found[name] for name, weight in weights.items())
    torch.testing.assert_close(found["loss"].detach(), total)
    assert found["loss"].requires_grad
    assert not any(found[name].requires_grad for name in weights)

    singles = [system(batch.alone(n), objective) for n in range(3)]
    for name in ("loss", *weights):
        torch.testing.assert_close(found[name], torch.stack([single[name] for single in singles]).mean())
    parameters = list(system.parameters())
    expected = torch.autograd.grad(sum(single["loss"] for single in singles) / 3, parameters)
    torch.testing.assert_close(torch.autograd.grad(found["loss"], parameters), expected)


def test_ctc_parts_are_the_criterion():
    system, batch = toy_system(), toy_batch()
    risks = brctc.EarlyFinish(3.0), brctc.EarlyEmission(2.0)
    found = system(batch, Objective(*risks))
    encoded = system.encode(batch.features, batch.lengths)
    for name, logits, risk in zip(
        ("inter_ctc", "ctc"), (encoded.inter_logits, encoded.logits), risks, strict=True
    ):
        expected = brctc.bayes_risk_ctc_loss(
            logits.log_softmax(-1).transpose(0, 1), batch.targets, encoded.lengths, batch.target_lengths, risk
        )
        torch.testing.assert_close(found[name], expected.detach())


def test_factor_is_frames_kept_of_all():
    system, batch = toy_system(), toy_batch()
    finish_early(system, batch)
    found = system(batch, Objective(trim=TRIM))
    encoded = system.encode(batch.features, batch.lengths, TRIM)
    assert (encoded.lengths >= frames_needed(batch.targets, batch.target_lengths)).all()
    assert found["factor"].item() == pytest.approx(
        int(encoded.lengths.sum()) / int(encoded.inter_lengths.sum())
    )
    assert found["factor"] < 1


def test_trimming_leaves_every_target_possible():
    """A model that says nothing would be trimmed to the margin: too short for its labels."""
    system = toy_system(subsampling=1)
    with torch.no_grad():
        system.encoder.ctc.weight.zero_()
        system.encoder.ctc.bias.copy_(torch.tensor([30.0] + [0.0] * (CLASSES - 1)))
    features = torch.randn(3, 12, FEATURES, dtype=torch.double)
    targets = torch.tensor([[1, 1, 2, 2], [1, 2, 3, 0], [4, 4, 0, 0]])
    batch = Batch(features, torch.tensor([12, 12, 12]), targets, torch.tensor([4, 3, 2]))
    assert frames_needed(targets, batch.target_lengths).tolist() == [6, 3, 3]
    trim = TrimConfig(margin=1)
    assert system.encode(features, batch.lengths, trim).lengths.tolist() == [1, 1, 1]
    found = system(batch, Objective(trim=trim))
    assert found["loss"].isfinite()
    assert found["factor"].item() == pytest.approx(12 / 36)


def test_frames_needed_agrees_with_check_feasible():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(1, 3, (30, 6), generator=generator)
    lengths = torch.randint(0, 7, (30,), generator=generator)
    needed = frames_needed(targets, lengths)
    assert brctc.check_feasible(targets, needed.clamp(min=1), lengths) == []
    short = brctc.check_feasible(targets, (needed - 1).clamp(min=1), lengths)
    assert {n: frames for n, frames, _ in short} == {n: f for n, f in enumerate(needed.tolist()) if f > 1}


@pytest.mark.parametrize("positions", ["relative", "sinusoidal"])
@pytest.mark.parametrize("decoders", DECODERS)
def test_systems_learn(decoders, positions):
    """Thirty steps on one batch: every part of the loss falls."""
    torch.manual_seed(0)
    config = toy_config(dim=32, positions=positions, subsampling=2, dropout=0.0, **decoders)
    system = System(config, FEATURES, CLASSES)
    batch = learnable_batch()
    objective = Objective()
    before, after = learn(system, batch, objective)
    assert after["loss"] < 0.3 * before["loss"], (before, after)
    for name in objective.weights(config):
        assert after[name] < before[name], name


@pytest.mark.parametrize("decoders", DECODERS)
def test_bfloat16_autocast(decoders):
    torch.manual_seed(0)
    system = System(toy_config(**decoders), FEATURES, CLASSES)
    batch = learnable_batch()
    exact = system.eval()(batch, Objective(trim=TrimConfig(margin=100)))
    with torch.autocast("cpu", torch.bfloat16):
        rough = system(batch, Objective(trim=TrimConfig(margin=100)))
    rough["loss"].backward()
    torch.testing.assert_close(rough["loss"], exact["loss"], rtol=0.05, atol=0)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in system.parameters())
