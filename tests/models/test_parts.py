"""The parts that encoders and decoders share, each against a direct formula."""

import math

import pytest
import torch
import torch.nn.functional as F

from brctc.models.conformer import Conformer
from brctc.models.layers import Depthwise, Dropout
from brctc.models.normalisation import Normalisation
from brctc.models.positions import distance_scores, frame_positions, sinusoids
from brctc.models.self_attention import SelfAttention
from brctc.models.subsampling import Subsampling, subsampled_lengths


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_subsampled_lengths_are_the_frames_that_come_out(factor):
    module = Subsampling(factor, feature_dim=9, channels=2, dim=4)
    for frames in range(7, 30):
        hidden, lengths = module(torch.randn(1, frames, 9), torch.tensor([frames]))
        assert hidden.shape == (1, int(lengths), 4)
    assert (
        subsampled_lengths(torch.tensor([0, 6, 7, 100]), factor).tolist()
        == {
            1: [0, 6, 7, 100],
            2: [-3, 0, 1, 47],
            4: [-1, 0, 1, 24],
        }[factor]
    )


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_a_subsampled_frame_sees_its_window_and_nothing_else(factor):
    torch.manual_seed(0)
    module = Subsampling(factor, feature_dim=13, channels=3, dim=4)
    features = torch.randn(1, 40, 13, requires_grad=True)
    hidden, _ = module(features, torch.tensor([40]))
    place = 3
    (gradient,) = torch.autograd.grad(hidden[0, place].sum(), features)
    seen = gradient[0].abs().sum(-1).nonzero().flatten().tolist()
    width = 1 if factor == 1 else 7
    assert seen == list(range(factor * place, factor * place + width))


def test_subsampling_needs_enough_features():
    with pytest.raises(ValueError, match="feature_dim is 6, expected 7 or more for 4x"):
        Subsampling(4, feature_dim=6, channels=2, dim=4)


def test_sinusoids():
    found = sinusoids(torch.tensor([0, 3]), 6)
    rates = [10000 ** (-i / 6) for i in (0, 2, 4)]
    expected = [math.sin(3 * rate) for rate in rates] + [math.cos(3 * rate) for rate in rates]
    torch.testing.assert_close(found, torch.tensor([[0.0] * 3 + [1.0] * 3, expected]))
    like = torch.zeros(1, 5, 6)
    torch.testing.assert_close(frame_positions(2, like, first=3), frame_positions(5, like)[3:])


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_distance_scores_pick_the_distance_of_each_pair(frames):
    scores = torch.randn(2, 3, frames, 2 * frames)
    found = distance_scores(scores)
    assert found.shape == (2, 3, frames, frames)
    for query in range(frames):
        for key in range(frames):
            # column c stands for the distance key - query = c - T
            assert torch.equal(found[:, :, query, key], scores[:, :, query, key - query + frames])


def test_relative_attention_by_its_formula():
    torch.manual_seed(0)
    frames, dim, heads = 6, 8, 2
    module = SelfAttention(dim, heads, relative=True).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    x = torch.randn(2, frames, dim, dtype=torch.double)
    lengths = torch.tensor([6, 4])
    context = Conformer(1, dim, heads, 4, 3, 0.0, 0.0, relative=True).context(x, lengths)

    for n in range(2):
        query, key, value = (part.view(frames, heads, -1) for part in module.project(x[n]).chunk(3, -1))
        distances = module.distance(sinusoids(torch.arange(-frames, frames), dim).double())
        distances = distances.view(2 * frames, heads, -1)
        output = torch.zeros(frames, heads, dim // heads, dtype=torch.double)
        for h in range(heads):
            for i in range(frames):
                scores = torch.stack(
                    [
                        (query[i, h] + module.key_bias[h, 0]) @ key[j, h]
                        + (query[i, h] + module.distance_bias[h, 0]) @ distances[j - i + frames, h]
                        for j in range(int(lengths[n]))
                    ]
                )
                weights = (scores / math.sqrt(dim // heads)).softmax(0)
                output[i, h] = weights @ value[: lengths[n], h]
                found = module.weights(x, context)[n, h, i]
                torch.testing.assert_close(found[: lengths[n]], weights)
                assert found[lengths[n] :].eq(0).all()
        torch.testing.assert_close(module(x, context)[n], module.out(output.flatten(1)))


def test_attention_weights_are_those_of_forward():
    torch.manual_seed(0)
    stack = Conformer(2, 8, 2, 12, 5, 0.0, 0.0, relative=False).double()
    x, lengths = torch.randn(2, 7, 8, dtype=torch.double), torch.tensor([7, 5])
    output, weights = stack.attention_weights(x, lengths)
    torch.testing.assert_close(output, stack(x, lengths))
    context = stack.context(x, lengths)
    normed = stack.layers[0].attention_norm(x + 0.5 * stack.layers[0].first(stack.layers[0].first_norm(x)))
    attention = stack.layers[0].attention
    value = attention.project(normed).chunk(3, -1)[2].unflatten(-1, (2, -1)).transpose(1, 2)
    expected = attention.out((weights[0] @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(normed, context), expected)


@pytest.mark.parametrize("padding", [0, 2])
def test_depthwise_of_few_frames_is_the_convolution(padding):
    """Without gradients few frames are convolved by hand; many, and those in training, by torch's kernel."""
    torch.manual_seed(0)
    module = Depthwise(6, 5, padding).double()
    few = torch.randn(2, 9, 6, dtype=torch.double)
    for x in (few, few.repeat(1, 1000, 1)):
        weight = module.weight[:, :, 0]
        expected = F.conv1d(x.transpose(1, 2), weight, module.bias, padding=padding, groups=6).transpose(1, 2)
        torch.testing.assert_close(module(x), expected)
        with torch.no_grad():
            torch.testing.assert_close(module(x), expected.detach())


def test_dropout():
    torch.manual_seed(0)
    x = torch.full((301, 333), 2.0, requires_grad=True)  # not a multiple of four
    module = Dropout(0.3)
    dropped = module(x)
    kept = dropped != 0
    assert abs(kept.float().mean() - 0.7) < 4 * math.sqrt(0.21 / x.numel())
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 2 / 0.7), rtol=1e-4, atol=0)
    # neighbours that share a draw are independent
    pairs = (kept[:, :-1] & kept[:, 1:]).float().mean()
    assert abs(pairs - 0.49) < 0.01
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.equal(gradient, dropped.detach() / 2)
    torch.manual_seed(0)
    assert torch.equal(module(x), dropped), "the seed decides"
    assert module.eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_normalisation():
    features = torch.randn(2, 9, 3) * 4 + 1
    lengths = torch.tensor([9, 5])
    features[1, 5:] = torch.nan

    module = Normalisation("global", 3)
    mean, std = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 0.5, 0.0])
    module.set_statistics(mean, std)
    found = module(features, lengths)
    torch.testing.assert_close(found[0, :, :2], (features[0, :, :2] - mean[:2]) / std[:2])
    assert found.isfinite().all(), "a feature without deviation is no error"
    assert found[1, 5:].eq(0).all()

    found = Normalisation("utterance", 3)(features, lengths)
    for n, length in enumerate(lengths):
        torch.testing.assert_close(found[n, :length].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(found[n, :length].std(0, correction=0), torch.ones(3))
    assert found[1, 5:].eq(0).all()

    found = Normalisation("none", 3)(features, lengths)
    assert torch.equal(found[0], features[0])
    assert torch.equal(found[1], F.pad(features[1, :5], (0, 0, 0, 4)))


def test_statistics_are_checked():
    module = Normalisation("global", 3)
    with pytest.raises(ValueError, match=r"mean has shape \(2,\), expected \(3,\)"):
        module.set_statistics(torch.zeros(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"std is -1\.0 for feature 1"):
        module.set_statistics(torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match="mean is nan for feature 2"):
        module.set_statistics(torch.tensor([0.0, 0.0, torch.nan]), torch.ones(3))
    with pytest.raises(ValueError, match='normalisation is "none"'):
        Normalisation("none", 3).set_statistics(torch.zeros(3), torch.ones(3))
