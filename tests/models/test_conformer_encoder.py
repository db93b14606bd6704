"""An utterance's encoding is its own: no padding, no neighbour, no trimmed frame changes it."""

import pytest
import torch
from torch.nn.functional import pad as pad_frames

from brctc.data import Padded
from brctc.models import TrimConfig
from brctc.models.positions import sinusoids
from tests.models.toys import FEATURES, TRIM, alone, finish_early, one_of, toy_batch, toy_system

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
    features, lengths = batch.source.values.clone().requires_grad_(), batch.source.lengths
    together = system.encode(Padded(features, lengths), trim)
    if trim:
        kept, frames = together.final.lengths, together.taps["middle"].lengths
        assert len(set(kept.tolist())) > 1
        assert (kept < frames).any()
        assert together.final.values.shape[1] == kept.max() < frames.max()
    weight = torch.randn(together.final.values.shape[1:], dtype=torch.double)
    middle_weight = torch.randn(together.logits("middle").values.shape[1:], dtype=torch.double)

    def objective(encoded):
        value = 0
        for n in range(len(encoded.final.lengths)):
            hidden, logits = one_of(encoded.final, n).values[0], one_of(encoded.logits("middle"), n).values[0]
            value = value + (hidden * weight[: len(hidden)]).sum()
            value = value + (logits * middle_weight[: len(logits)]).sum()
        return value

    parameters = list(system.parameters())
    feature_gradient, *expected = torch.autograd.grad(objective(together), [features, *parameters])
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for n in range(3):
        single = alone(batch, n).source
        single_features = single.values.clone().requires_grad_()
        own = system.encode(Padded(single_features, single.lengths), trim)
        assert own.taps.keys() == together.taps.keys() == {"middle", "trimmed", "final"}
        for tap in own.taps:
            assert own.taps[tap].lengths[0] == together.taps[tap].lengths[n]
            torch.testing.assert_close(one_of(together.taps[tap], n).values, own.taps[tap].values)
            torch.testing.assert_close(one_of(together.logits(tap), n).values, own.logits(tap).values)
        gradient, *parts = torch.autograd.grad(objective(own), [single_features, *parameters])
        torch.testing.assert_close(feature_gradient[n, : single.lengths], gradient[0])
        assert feature_gradient[n, single.lengths :].eq(0).all()
        total = [before + part for before, part in zip(total, parts, strict=True)]
    torch.testing.assert_close(total, expected)


def test_neighbours_change_nothing(system):
    batch = toy_batch()
    before = system.encode(batch.source, TRIM)
    batch.source.values[0] = -5 * batch.source.values[0]
    after = system.encode(batch.source, TRIM)
    for n in (1, 2):
        assert before.final.lengths[n] == after.final.lengths[n]
        torch.testing.assert_close(one_of(before.final, n).values, one_of(after.final, n).values)


def test_trimming_removes_frames_and_nothing_else(system):
    """The second half sees the first frames, at their places: as many as `trimmed_lengths` says."""
    batch = toy_batch()
    encoder = system.encoder
    whole, trimmed = system.encode(batch.source), system.encode(batch.source, TRIM)
    assert torch.equal(whole.logits("middle").values, trimmed.logits("middle").values)
    assert torch.equal(whole.final.lengths, whole.taps["middle"].lengths)
    normalised = Padded(system.normalisation(*batch.source), batch.source.lengths)
    hidden, frames = encoder._enter(normalised)
    hidden = encoder.first(hidden, frames)
    torch.testing.assert_close(trimmed.taps["middle"].values, hidden)
    assert trimmed.final.lengths.tolist() == whole.kept_lengths("middle", TRIM).tolist()
    assert trimmed.taps["trimmed"].lengths.tolist() == trimmed.final.lengths.tolist()
    for n, kept in enumerate(trimmed.final.lengths.tolist()):
        beginning = hidden[n : n + 1, :kept]
        torch.testing.assert_close(one_of(trimmed.taps["trimmed"], n).values, beginning)
        second = encoder.second(beginning, torch.tensor([kept]))
        torch.testing.assert_close(one_of(trimmed.final, n).values, second)
    everything = system.encode(batch.source, TrimConfig(margin=1000))
    torch.testing.assert_close(everything.final.values, whole.final.values)


def test_trimming_leaves_at_least(system):
    """Numbers for all or for each; nobody gets more than there is."""
    batch = toy_batch()
    kept = system.encode(batch.source, TRIM).final.lengths
    frames = system.encode(batch.source).final.lengths
    assert kept[0] < frames[0]
    least = torch.stack([kept[0] + 1, kept[1] - 1, frames[2] + 100])
    found = system.encode(batch.source, TRIM, least).final.lengths
    assert found.tolist() == [int(kept[0]) + 1, int(kept[1]), int(frames[2])]
    for_all = system.encode(batch.source, TRIM, int(kept.max())).final.lengths
    assert for_all.tolist() == torch.minimum(kept.max(), frames).tolist()


def test_absolute_positions_enter_with_the_frames(system):
    """And relative ones do not: there all frames of a constant input are the same."""
    features = torch.ones(1, 40, FEATURES, dtype=torch.double)
    hidden, lengths = system.encoder._enter(Padded(features, torch.tensor([40])))
    expected = system.encoder.subsampling(features, torch.tensor([40]))[0]
    if system.config.encoder.positions == "sinusoidal":
        expected = expected + sinusoids(torch.arange(int(lengths)), expected.shape[-1])
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("subsampling", "least"), [(1, 1), (2, 7), (4, 7)])
def test_too_short_utterances_are_named(subsampling, least):
    system = toy_system(subsampling=subsampling)
    features = torch.zeros(2, 20, FEATURES, dtype=torch.double)
    system.encode(Padded(features, torch.tensor([20, least])))
    message = f"utterance 1 has {least - 1} frames, expected {least} or more"
    with pytest.raises(ValueError, match=message):
        system.encode(Padded(features, torch.tensor([20, least - 1])))


@pytest.mark.parametrize("call", ["encode", "encoder_attention"])
def test_features_that_do_not_fit(call):
    take = getattr(toy_system(), call)
    with pytest.raises(ValueError, match=r"shape \(2, 20, 7\), expected \(N, T, 11\)"):
        take(Padded(torch.zeros(2, 20, 7), torch.tensor([20, 20])))
    with pytest.raises(ValueError, match=r"shape \(20, 11\), expected \(N, T, 11\)"):
        take(Padded(torch.zeros(20, 11), torch.tensor([20])))
    with pytest.raises(ValueError, match=r"lengths have shape \(1,\) for 2 utterances"):
        take(Padded(torch.zeros(2, 20, 11), torch.tensor([20])))
    with pytest.raises(ValueError, match=r"lengths\[1\] is 21, but there are 20 frames"):
        take(Padded(torch.zeros(2, 20, 11), torch.tensor([9, 21])))


def test_encoder_attention(system):
    batch = toy_batch()
    single = alone(batch, 0).source
    system.train()
    weights = system.encoder_attention(single)
    assert system.training
    frames = int(system.encode(single).final.lengths)
    assert [tuple(weight.shape) for weight in weights] == [(2, frames, frames)] * 3
    for weight in weights:
        torch.testing.assert_close(weight.sum(-1), torch.ones(2, frames, dtype=torch.double))
    trimmed = system.encoder_attention(single, TRIM)
    kept = int(system.eval().encode(single, TRIM).final.lengths)
    assert kept < frames
    assert [len(weight[0]) for weight in trimmed] == [frames, frames, kept]
    with pytest.raises(ValueError, match="the source holds 3 utterances, expected 1"):
        system.encoder_attention(batch.source)


class Exported(torch.nn.Module):
    def __init__(self, system):
        super().__init__()
        self.system = system

    def forward(self, features, lengths):
        encoded = self.system.encode(Padded(features, lengths), TRIM)
        return tuple(encoded.logits())


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
        tuple(batch.source),
        dynamic_shapes={"features": {0: dynamic, 1: dynamic}, "lengths": {0: dynamic}},
    ).module()
    features, lengths = batch.source
    longer = Padded(pad_frames(features[:2], (0, 0, 0, 13)), lengths[:2])
    for source in (batch.source, longer):
        expected, kept = module(*source)
        found, found_kept = program(*source)
        assert torch.equal(found_kept, kept)
        torch.testing.assert_close(found, expected)
        assert 2 < found.shape[1] < (features.shape[1] - 3) // 4
