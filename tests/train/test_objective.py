"""What a stage minimises: terms are what they say, trimming breaks none of them, and systems learn."""

import math
from typing import Literal

import pytest
import torch

import brctc
from brctc.align import frames_needed
from brctc.config import KeyedError
from brctc.data import Batch, Padded, pad
from brctc.models import AttentionConfig, System, TrimConfig
from brctc.train.losses import LOSSES, CTCConfig, DecoderLossConfig, Loss, LossConfig, PeakFirstConfig
from brctc.train.losses import peak_first_loss as peak_first
from brctc.train.objective import Objective
from brctc.train.risks import EarlyEmissionConfig, EarlyFinishConfig
from tests.models.toys import (
    CLASSES,
    FEATURES,
    TEXT,
    TRIM,
    alone,
    finish_early,
    make_batch,
    toy_batch,
    toy_config,
    toy_online,
    toy_online_config,
    toy_system,
)
from tests.train.terms import DECODERS, NO_RISK, online_terms, terms


def check_weighed_mean(objective, batch):
    """Term by term, for the batch and for each utterance by itself; gradients likewise."""
    found = objective(batch, 0)
    weights = {name: config.weight for name, config in objective.configs.items()}
    assert list(found) == ["loss", *objective.names(0)]
    assert found.keys() - {"factor"} == {"loss", *weights}
    total = sum(weight * found[name] for name, weight in weights.items())
    torch.testing.assert_close(found["loss"].detach(), total)
    assert found["loss"].requires_grad
    assert not any(found[name].requires_grad for name in objective.names(0))

    singles = [objective(alone(batch, n), 0) for n in range(3)]
    for name in ("loss", *weights):
        torch.testing.assert_close(found[name], torch.stack([single[name] for single in singles]).mean())
    parameters = list(objective.parameters())
    expected = torch.autograd.grad(sum(single["loss"] for single in singles) / 3, parameters)
    torch.testing.assert_close(torch.autograd.grad(found["loss"], parameters), expected)


@pytest.mark.parametrize("trim", [None, TRIM], ids=["whole", "trimmed"])
@pytest.mark.parametrize("decoders", DECODERS)
def test_loss_is_the_weighed_mean_over_utterances(decoders, trim):
    system, batch = toy_system(**decoders), toy_batch()
    finish_early(system, batch)
    early, earlier = ({"risk": EarlyFinishConfig(factor=factor)} for factor in (3.0, 2.0))
    losses = terms(decoders, early, NO_RISK if trim else earlier, regularised=True)
    objective = Objective(system, losses, trim)
    assert ("factor" in objective.names(0)) == (trim is not None)
    check_weighed_mean(objective, batch)


def test_loss_of_an_online_hybrid_system():
    losses = online_terms(risk=EarlyEmissionConfig(factor=2.0))
    check_weighed_mean(Objective(toy_online(attention=True), losses), toy_batch())


def test_ctc_terms_are_the_criterion():
    """On their taps, with the risk of the step."""
    system, batch = toy_system(), toy_batch()
    early = EarlyFinishConfig(factor=((0, 0.0), (10, 5.0)))
    losses = terms((), {"risk": early}, {"risk": EarlyEmissionConfig(factor=2.0)})
    encoded, targets = system.encode(batch.source), batch.targets[TEXT]
    for step, risk in ((0, None), (6, brctc.EarlyFinish(3.0)), (99, brctc.EarlyFinish(5.0))):
        found = Objective(system, losses)(batch, step)
        for name, risk_of_tap in (("middle", risk), ("final", brctc.EarlyEmission(2.0))):
            logits, lengths = encoded.logits(name)
            expected = brctc.bayes_risk_ctc_loss(
                logits.log_softmax(-1).transpose(0, 1), targets.values, lengths, targets.lengths, risk_of_tap
            )
            torch.testing.assert_close(found[name], expected.detach())
    assert losses["middle"].factors(6) == {"risk": 3.0}


def test_other_terms_are_those_of_their_parts():
    """On the taps that they name."""
    system, batch = toy_system(attention=True, transducer=True), toy_batch()
    losses = {
        "said": DecoderLossConfig(of="attention"),
        "heard": DecoderLossConfig(of="transducer"),
        "smooth": PeakFirstConfig(on="middle"),
    }
    found = Objective(system, losses)(batch, 0)
    encoded, targets = system.encode(batch.source), batch.targets[TEXT]
    for name, decoder in (("said", "attention"), ("heard", "transducer")):
        expected = system.decoders[decoder].loss(encoded.final, targets)
        torch.testing.assert_close(found[name], expected.detach())
    expected = peak_first(encoded.logits("middle"), targets.lengths)
    torch.testing.assert_close(found["smooth"], expected.detach())
    assert not torch.allclose(expected, peak_first(encoded.logits("final"), targets.lengths))


def test_a_decoder_learns_on_its_tap():
    attention = AttentionConfig(layers=1, dim=12, heads=2, feed_forward_dim=20, on="middle")
    system = toy_system(toy_config().model_copy(update={"decoders": {"early": attention}}))
    batch = toy_batch()
    found = Objective(system, {"early": DecoderLossConfig(of="early")})(batch, 0)
    encoded = system.encode(batch.source)
    expected = system.decoders["early"].loss(encoded.taps["middle"], batch.targets[TEXT])
    torch.testing.assert_close(found["early"], expected.detach())
    behind = list(system.encoder.second.parameters())
    gradients = torch.autograd.grad(found["loss"], behind, allow_unused=True)
    assert all(gradient is None for gradient in gradients)


def test_a_term_without_weight_is_not_computed():
    """Neither one that never has any, nor one that has none at this step."""
    system, batch = toy_system(attention=True), toy_batch()
    losses = {
        "middle": CTCConfig(on="middle", weight=0.0),
        "final": CTCConfig(weight=((0, 1.0), (10, 0.5))),
        "attention": DecoderLossConfig(of="attention", weight=((10, 0.0), (20, 1.0))),
    }
    objective = Objective(system, losses)
    ran = []
    system.decoders["attention"].out.register_forward_hook(lambda *_: ran.append(1))
    for step, weights in ((0, {"final": 1.0}), (10, {"final": 0.5}), (15, {"final": 0.5, "attention": 0.5})):
        found = objective(batch, step)
        assert objective.names(step) == list(weights)
        assert found.keys() == {"loss", *weights}
        torch.testing.assert_close(
            found["loss"].detach(), sum(weight * found[name] for name, weight in weights.items())
        )
    assert len(ran) == 1


@pytest.mark.parametrize(
    "weight", [-1, math.nan, math.inf, "1", True, (), ((5, 1.0), (5, 2.0)), ((0, -1.0),), ((0.5, 1.0),)]
)
@pytest.mark.parametrize("kind", ["ctc", "peak-first", "decoder"])
def test_impossible_weights(kind, weight):
    with pytest.raises(ValueError, match="weight"):
        LOSSES.parse({"kind": kind, "weight": weight} | ({"of": "x"} if kind == "decoder" else {}))


@pytest.mark.parametrize(
    ("loss", "config", "key", "message"),
    [
        (
            CTCConfig(on="midle"),
            toy_config(),
            "on",
            "there is no tap 'midle'; the encoder has middle, trimmed",
        ),
        (
            CTCConfig(on="middle"),
            toy_online_config(),
            "on",
            "there is no tap 'middle'; the encoder has final",
        ),
        (CTCConfig(text="translation"), toy_config(), "text", "no CTC head for 'translation'.* transcript"),
        (PeakFirstConfig(on="middle"), toy_online_config(), "on", "there is no tap 'middle'"),
        (PeakFirstConfig(text="translation"), toy_config(), "text", "no CTC head for 'translation'"),
        (
            DecoderLossConfig(of="transducer"),
            toy_config(attention=True),
            "of",
            "has attention, not 'transducer'",
        ),
        (DecoderLossConfig(of="attention"), toy_config(), "of", "model.decoders has none, not 'attention'"),
    ],
)
def test_losses_that_a_model_cannot_have(loss, config, key, message):
    with pytest.raises(KeyedError, match=message) as found:
        loss.check(config)
    assert found.value.key == key


def test_an_online_system_is_not_trimmed():
    objective = Objective(toy_online(attention=True), online_terms(), TrimConfig())
    with pytest.raises(ValueError, match="an encoder of kind emformer cannot be trimmed"):
        objective(toy_batch(), 0)


def test_factor_is_frames_kept_of_all():
    system, batch = toy_system(), toy_batch()
    finish_early(system, batch)
    found = Objective(system, terms(), TRIM)(batch, 0)
    encoded, targets = system.encode(batch.source, TRIM), batch.targets[TEXT]
    kept, frames = encoded.final.lengths, encoded.taps["middle"].lengths
    assert (kept >= frames_needed(*targets)).all()
    assert found["factor"].item() == pytest.approx(int(kept.sum()) / int(frames.sum()))
    assert found["factor"] < 1


def silent_system(config, vocab_sizes):
    """It says nothing, and would be trimmed to the margin."""
    torch.manual_seed(0)
    system = System(config, FEATURES, vocab_sizes).double().eval()
    with torch.no_grad():
        for head in system.heads.values():
            head.weight.zero_()
            head.bias.zero_()
            head.bias[0] = 30.0
    return system


def test_trimming_leaves_every_target_possible():
    """The margin alone would be too short for its labels."""
    system = silent_system(toy_config(subsampling=1), {TEXT: CLASSES})
    source = Padded(torch.randn(3, 12, FEATURES, dtype=torch.double), torch.tensor([12, 12, 12]))
    targets = Padded(torch.tensor([[1, 1, 2, 2], [1, 2, 3, 0], [4, 4, 0, 0]]), torch.tensor([4, 3, 2]))
    assert frames_needed(*targets).tolist() == [6, 3, 3]
    trim = TrimConfig(margin=1)
    assert system.encode(source, trim).final.lengths.tolist() == [1, 1, 1]
    found = Objective(system, terms(), trim)(make_batch(source, targets), 0)
    assert found["loss"].isfinite()
    assert found["factor"].item() == pytest.approx(12 / 36)


def test_trimming_leaves_every_text_possible():
    """The transcript decides what is cut, and the longer of both texts how much must stay."""
    config = toy_config(subsampling=1).model_copy(update={"heads": two_heads()})
    system = silent_system(config, {TEXT: CLASSES, "translation": 9})
    source = Padded(torch.randn(2, 12, FEATURES, dtype=torch.double), torch.tensor([12, 12]))
    targets = {
        TEXT: pad([torch.tensor([1, 2, 3]), torch.tensor([1])]),
        "translation": pad([torch.tensor([8]), torch.tensor([7, 7, 7])]),
    }
    batch = Batch(["a", "b"], source, {}, targets)
    losses = {name: CTCConfig(text=name) for name in targets}
    found = Objective(system, losses, TrimConfig(margin=0))(batch, 0)
    assert found["loss"].isfinite()
    assert found["factor"].item() == pytest.approx((3 + 5) / 24)
    alone_found = Objective(system, {TEXT: CTCConfig()}, TrimConfig(margin=0))(batch, 0)
    assert alone_found["factor"].item() == pytest.approx((3 + 1) / 24)


def two_heads():
    heads = toy_config().heads
    return heads | {"translation": heads[TEXT]}


def test_frames_needed_agrees_with_check_feasible():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(1, 3, (30, 6), generator=generator)
    lengths = torch.randint(0, 7, (30,), generator=generator)
    needed = frames_needed(targets, lengths)
    assert brctc.check_feasible(targets, needed.clamp(min=1), lengths) == []
    short = brctc.check_feasible(targets, (needed - 1).clamp(min=1), lengths)
    assert {n: frames for n, frames, _ in short} == {n: f for n, f in enumerate(needed.tolist()) if f > 1}


def test_scores_that_a_loss_refuses():
    """The sum is NaN, so that every process stops at the same step; what was wrong is kept."""
    system, batch = toy_system(), toy_batch(lengths=(63, 40), target_lengths=(4, 5))
    objective = Objective(system, terms())
    assert objective(batch, 0)["loss"].isfinite()
    assert objective.refused == ""
    with torch.no_grad():
        system.heads[TEXT].bias[2] = torch.nan
    found = objective(batch, 0)
    assert list(found) == ["loss"]
    assert found["loss"].isnan()
    assert found["loss"].requires_grad
    assert objective.refused == "logits hold NaN or +inf, or only -inf, at frame 0 of utterance 0"


def test_a_loss_from_outside(monkeypatch):
    """A config and a module are all that it takes; parameters of its own are trained with the system's."""
    monkeypatch.setattr(LOSSES, "_kinds", dict(LOSSES._kinds))

    @LOSSES.register
    class LengthConfig(LossConfig):
        kind: Literal["length"] = "length"

        def build(self):
            return Length()

    class Length(Loss):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.double))

        def forward(self, forward, step):
            return self.scale * (forward.encoded.final.lengths + step).double().mean()

    system, batch = toy_system(), toy_batch()
    objective = Objective(system, {"length": LOSSES.parse({"kind": "length", "weight": 0.5})})
    found = objective(batch, 4)
    frames = system.encode(batch.source).final.lengths.double().mean()
    torch.testing.assert_close(found["loss"], 0.5 * 2 * (frames + 4))
    (gradient,) = torch.autograd.grad(found["loss"], objective.losses["length"].scale)
    torch.testing.assert_close(gradient, 0.5 * (frames + 4))


def test_all_weights_may_be_nothing_at_a_step():
    system, batch = toy_system(), toy_batch()
    objective = Objective(system, {"late": CTCConfig(weight=[[0, 0], [10, 1]])})
    found = objective(batch, 0)
    assert set(found) == {"loss"}
    found["loss"].backward()
    assert all(p.grad is None or p.grad.eq(0).all() for p in objective.parameters())
    assert objective(batch, 10)["late"] > 0


def test_what_was_looked_at_without_a_gradient_still_has_one_for_a_loss():
    system, batch = toy_system(), toy_batch()
    encoded = system.encode(batch.source)
    with torch.no_grad():
        assert not encoded.logits("final").values.requires_grad
    assert encoded.logits("final").values.requires_grad
