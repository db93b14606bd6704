"""SpecAugment and TrimTail change what they may, as much as they may, and never the padding."""

import math

import pytest
import torch

from brctc.data import SpecAugmentConfig, spec_augment, trim_tail

OFF = SpecAugmentConfig(num_time_masks=0, num_frequency_masks=0, max_time_warp=0)
LENGTHS = torch.tensor([120, 77, 40, 3, 2, 1])


def batch() -> torch.Tensor:
    features = torch.randn(len(LENGTHS), 120, 80, generator=torch.Generator().manual_seed(1))
    for n, length in enumerate(LENGTHS):
        features[n, length:] = math.nan if n % 2 else math.inf
    return features


def augment(features, lengths, config, seed=0):
    return spec_augment(features, lengths, config, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(20))
def test_padding_is_neither_read_nor_changed(seed):
    found = augment(batch(), LENGTHS, SpecAugmentConfig(), seed)
    for n, length in enumerate(LENGTHS):
        torch.testing.assert_close(found[n, length:], batch()[n, length:], rtol=0, atol=0, equal_nan=True)
        assert found[n, :length].isfinite().all()


def test_the_generator_decides_and_the_input_stays():
    features = batch()
    first, second = (augment(features, LENGTHS, SpecAugmentConfig(), seed=3) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    other = augment(features, LENGTHS, SpecAugmentConfig(), seed=4)
    assert not torch.equal(first[0], other[0])
    torch.testing.assert_close(features, batch(), rtol=0, atol=0, equal_nan=True)
    generator = torch.Generator().manual_seed(3)
    spec_augment(features, LENGTHS, SpecAugmentConfig(), generator)
    following = spec_augment(features, LENGTHS, SpecAugmentConfig(), generator)
    assert not torch.equal(first[0], following[0])


def test_more_padding_changes_nothing():
    features = batch()[:2, :100]
    lengths = torch.tensor([100, 77])
    padded = torch.cat([features, torch.full((2, 50, 80), math.nan)], 1)
    found = augment(padded, lengths, SpecAugmentConfig())
    torch.testing.assert_close(found[0, :100], augment(features, lengths, SpecAugmentConfig())[0])


def test_nothing_configured_changes_nothing():
    torch.testing.assert_close(augment(batch(), LENGTHS, OFF), batch(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("options", "widest"),
    [
        ({"num_time_masks": 1}, 40),
        ({"num_time_masks": 1, "time_mask_length": 7}, 7),
        ({"num_time_masks": 1, "time_mask_length": 1000, "time_mask_share": 0.05}, 5),
        ({"num_frequency_masks": 1}, 30),
        ({"num_frequency_masks": 1, "frequency_mask_length": 4}, 4),
    ],
)
def test_masks_reach_their_widest_and_fill_with_the_mean(options, widest):
    features = torch.randn(1000, 100, 80, generator=torch.Generator().manual_seed(2))
    found = augment(features, torch.full((1000,), 100), OFF.model_copy(update=options))
    masked = found != features
    axis = 2 if "num_time_masks" in options else 1
    assert (masked.all(axis) == masked.any(axis)).all()  # whole frames, or whole bins
    lines = masked.any(axis)
    widths = lines.sum(1)
    assert widths.max() == widest
    assert widths.min() == 0
    assert abs(widths.float().mean() - widest / 2) < widest / 10
    switches = (lines[:, 1:] != lines[:, :-1]).sum(1)
    assert switches.max() <= 2  # one stretch
    assert lines[:, 0].any()
    assert lines[:, -1].any()
    torch.testing.assert_close(found[masked], features.mean(1, keepdim=True).expand_as(found)[masked])


def test_warping_moves_at_most_so_many_frames():
    """A ramp says where each frame came from."""
    lengths = torch.tensor([100, 50, 13, 3, 2, 1]).repeat(300)
    ramp = torch.arange(100.0)[:, None].expand(1800, 100, 3).contiguous()
    found = augment(ramp, lengths, OFF.model_copy(update={"max_time_warp": 5}))
    for warped, length in zip(found[..., 0], lengths, strict=True):
        moved = (warped - ramp[0, :, 0]).abs()
        assert moved.max() <= 5 + 1e-4
        assert warped[0] == 0
        assert abs(warped[length - 1] - (length - 1)) < 1e-4
        assert (warped[:length].diff() > 0).all()
    long = found[lengths == 100, :, 0] - ramp[0, :, 0]
    assert long.abs().amax() > 4.9
    assert (long.abs().amax(1) < 0.5).float().mean() < 0.2  # the frame that moves by 0 is one of 11


def test_warped_frames_lie_between_their_neighbours():
    features = torch.randn(50, 60, 4, generator=torch.Generator().manual_seed(3))
    found = augment(features, torch.full((50,), 60), OFF.model_copy(update={"max_time_warp": 5}))
    assert (found.amax((1, 2)) <= features.amax((1, 2))).all()
    assert not torch.equal(found, features)


def test_tails_are_cut_evenly():
    lengths = torch.full((20000,), 100)
    left = trim_tail(lengths, torch.ones_like(lengths), 10, torch.Generator().manual_seed(0))
    counts = (100 - left).bincount()
    assert counts[0] == 0
    assert len(counts) == 11
    assert (counts[1:] - 2000).abs().max() < 200
    again = trim_tail(lengths, torch.ones_like(lengths), 10, torch.Generator().manual_seed(0))
    assert again.equal(left)


def test_an_utterance_that_would_be_too_short_stays_whole():
    lengths = torch.tensor([100, 100, 100, 9, 1]).repeat(2000)
    needed = torch.tensor([1, 95, 100, 1, 1]).repeat(2000)
    left = trim_tail(lengths, needed, 10, torch.Generator().manual_seed(0)).view(-1, 5).unique(dim=0)
    assert [column.unique().tolist() for column in left.T] == [
        list(range(90, 100)),
        [95, 96, 97, 98, 99, 100],
        [100],
        [5, 6, 7, 8, 9],  # less than half is cut
        [1],
    ]


def test_copies_are_warped_alike_and_masked_differently():
    features = batch().nan_to_num(0, 0, 0)
    alone = augment(features, LENGTHS, SpecAugmentConfig())
    first, second = spec_augment(
        features, LENGTHS, SpecAugmentConfig(), torch.Generator().manual_seed(0), copies=2
    ).chunk(2)
    assert torch.equal(first, alone)
    assert not torch.equal(first, second)
    warped = SpecAugmentConfig(num_time_masks=0, num_frequency_masks=0)
    first, second = spec_augment(features, LENGTHS, warped, torch.Generator().manual_seed(0), copies=2).chunk(
        2
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, features)
