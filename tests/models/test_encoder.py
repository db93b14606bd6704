"""An utterance's encoding is its own: no padding, no neighbour, no trimmed frame changes it."""

import pytest
import torch

from brctc.models import TrimConfig
from brctc.models.positions import sinusoids
from tests.models.toys import FEATURES, TRIM, finish_early, toy_batch, toy_system

KINDS = [
    {"positions": "relative", "subsampling": 4},
    {"positions": "sinusoidal", "subsampling": 2, "normalisation": "utterance"},
    {"positions": "sinusoidal", "subsampling": 1, "normalisation": "none"},
]


@pytest.fixture(params=KINDS, ids=["relative-4x", "sinusoidal-2x", "sinusoidal-1x"])
def system(request):
    system = toy_system(**request.param)
    finish_early(system, toy_batch())
    return system


@pytest.mark.parametrize("trim", [None, TRIM], ids=["whole", "trimmed"])
def test_alone_as_in_a_batch(system, trim):
    """Outputs, lengths, and the gradients of features and parameters."""
    batch = toy_batch()
    features = batch.features.clone().requires_grad_()
    together = system.encode(features, batch.lengths, trim)
    if trim:
        assert len(set(together.lengths.tolist())) > 1
        assert (together.lengths < together.inter_lengths).any()
        assert together.hidden.shape[1] == together.lengths.max() < together.inter_lengths.max()
    weight = torch.randn(together.hidden.shape[1], together.hidden.shape[2], dtype=torch.double)
    inter_weight = torch.randn(together.inter_logits.shape[1:], dtype=torch.double)

    def objective(encoded):
        value = 0
        for n, (kept, frames) in enumerate(zip(encoded.lengths, encoded.inter_lengths, strict=True)):
            value = value + (encoded.hidden[n, :kept] * weight[:kept]).sum()
            value = value + (encoded.inter_logits[n, :frames] * inter_weight[:frames]).sum()
        return value

    parameters = [p for name, p in system.named_parameters() if name.startswith("encoder")]
    feature_gradient, *expected = torch.autograd.grad(objective(together), [features, *parameters])
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for n in range(3):
        single = batch.alone(n)
        single_features = single.features.clone().requires_grad_()
        alone = system.encode(single_features, single.lengths, trim)
        frames, kept = int(alone.inter_lengths), int(alone.lengths)
        assert (frames, kept) == (int(together.inter_lengths[n]), int(together.lengths[n]))
        for whole, own, length in (
            (together.hidden, alone.hidden, kept),
            (together.logits, alone.logits, kept),
            (together.inter_logits, alone.inter_logits, frames),
        ):
            torch.testing.assert_close(whole[n, :length], own[0])
        gradient, *parts = torch.autograd.grad(objective(alone), [single_features, *parameters])
        torch.testing.assert_close(feature_gradient[n, : single.lengths], gradient[0])
        assert feature_gradient[n, single.lengths :].eq(0).all()
        total = [before + part for before, part in zip(total, parts, strict=True)]
    torch.testing.assert_close(total, expected)


def test_neighbours_change_nothing(system):
    batch = toy_batch()
    before = system.encode(batch.features, batch.lengths, TRIM)
    batch.features[0] = -5 * batch.features[0]
    after = system.encode(batch.features, batch.lengths, TRIM)
    for n in (1, 2):
        assert before.lengths[n] == after.lengths[n]
        kept = int(before.lengths[n])
        torch.testing.assert_close(before.hidden[n, :kept], after.hidden[n, :kept])


def test_trimming_removes_frames_and_nothing_else(system):
    """The second half sees the first frames, at their places: as many as `trimmed_lengths` says."""
    batch = toy_batch()
    encoder = system.encoder
    features = system.normalisation(batch.features, batch.lengths)
    whole = system.encode(batch.features, batch.lengths, None)
    trimmed = system.encode(batch.features, batch.lengths, TRIM)
    assert torch.equal(whole.inter_logits, trimmed.inter_logits)
    assert torch.equal(whole.lengths, whole.inter_lengths)
    hidden, lengths = encoder.enter(features, batch.lengths)
    hidden = encoder.first(hidden, lengths)
    for n, kept in enumerate(trimmed.lengths.tolist()):
        alone = encoder.second(hidden[n : n + 1, :kept], torch.tensor([kept]))
        torch.testing.assert_close(trimmed.hidden[n, :kept], alone[0])
    everything = system.encode(batch.features, batch.lengths, TrimConfig(margin=1000))
    torch.testing.assert_close(everything.hidden, whole.hidden)


def test_absolute_positions_enter_with_the_frames(system):
    """And relative ones do not: there all frames of a constant input are the same."""
    features = torch.ones(1, 40, FEATURES, dtype=torch.double)
    hidden, lengths = system.encoder.enter(features, torch.tensor([40]))
    expected = system.encoder.subsampling(features, torch.tensor([40]))[0]
    if system.config.encoder.positions == "sinusoidal":
        expected = expected + sinusoids(torch.arange(int(lengths)), expected.shape[-1])
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("subsampling", "least"), [(1, 1), (2, 7), (4, 7)])
def test_too_short_utterances_are_named(subsampling, least):
    system = toy_system(subsampling=subsampling)
    features = torch.zeros(2, 20, FEATURES, dtype=torch.double)
    system.encode(features, torch.tensor([20, least]))
    message = f"utterance 1 has {least - 1} frames, expected {least} or more"
    with pytest.raises(ValueError, match=message):
        system.encode(features, torch.tensor([20, least - 1]))


def test_features_that_do_not_fit():
    system = toy_system()
    with pytest.raises(ValueError, match=r"shape \(2, 20, 7\), expected \(N, T, 11\)"):
        system.encode(torch.zeros(2, 20, 7), torch.tensor([20, 20]))
    with pytest.raises(ValueError, match=r"lengths have shape \(1,\) for 2 utterances"):
        system.encode(torch.zeros(2, 20, 11), torch.tensor([20]))
    with pytest.raises(ValueError, match=r"lengths\[1\] is 21, but there are 20 frames"):
        system.encode(torch.zeros(2, 20, 11), torch.tensor([9, 21]))


def test_encoder_attention(system):
    batch = toy_batch()
    single = batch.alone(0)
    system.train()
    weights = system.encoder_attention(single.features, single.lengths)
    assert system.training
    frames = int(system.encode(single.features, single.lengths).lengths)
    assert [tuple(weight.shape) for weight in weights] == [(2, frames, frames)] * 3
    for weight in weights:
        torch.testing.assert_close(weight.sum(-1), torch.ones(2, frames, dtype=torch.double))
    trimmed = system.encoder_attention(single.features, single.lengths, TRIM)
    kept = int(system.eval().encode(single.features, single.lengths, TRIM).lengths)
    assert kept < frames
    assert [len(weight[0]) for weight in trimmed] == [frames, frames, kept]
    with pytest.raises(ValueError, match="features hold 3 utterances, expected 1"):
        system.encoder_attention(batch.features, batch.lengths)


class Exported(torch.nn.Module):
    def __init__(self, system):
        super().__init__()
        self.system = system

    def forward(self, features, lengths):
        encoded = self.system.encode(features, lengths, TRIM)
        return encoded.logits, encoded.lengths


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["relative", "sinusoidal"])
def test_the_trimming_encoder_can_be_exported(positions):
    system = toy_system(positions=positions, first_layers=1).float()
    batch = toy_batch(dtype=torch.float32, padding=0.0)
    finish_early(system, batch)
    module = Exported(system)
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(
        module,
        (batch.features, batch.lengths),
        dynamic_shapes={"features": {0: dynamic, 1: dynamic}, "lengths": {0: dynamic}},
    ).module()
    longer = torch.nn.functional.pad(batch.features[:2], (0, 0, 0, 13))
    for features, lengths in ((batch.features, batch.lengths), (longer, batch.lengths[:2])):
        expected, kept = module(features, lengths)
        found, found_kept = program(features, lengths)
        assert torch.equal(found_kept, kept)
        torch.testing.assert_close(found, expected)
        assert 2 < found.shape[1] < (batch.features.shape[1] - 3) // 4
