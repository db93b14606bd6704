"""SpecAugment: time warping, time masks and frequency masks (Park et al., 2019). TrimTail: shorter ends."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from brctc.config import Config

Count = Annotated[int, Field(ge=0)]


class SpecAugmentConfig(Config):
    """How much is masked and warped; the defaults are the paper's (table 3). 0 switches a part off."""

    num_time_masks: Count = 2
    time_mask_length: Count = 40
    """Frames of a time mask, at most."""
    time_mask_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the utterance that one time mask covers, at most."""
    num_frequency_masks: Count = 2
    frequency_mask_length: Count = 30
    """Bins of a frequency mask, at most."""
    max_time_warp: Count = 5
    """Frames by which a random frame is moved, at most; the frames around it follow."""


class AugmentConfig(SpecAugmentConfig):
    """What is done to the features of a training batch."""

    copies: Annotated[int, Field(ge=1, le=2)] = 1
    """2: every utterance is in its batch twice, warped and cut in the same way, masked differently, for the
    loss of kind consistency. A step then costs twice as much: halve `batch` for the same memory."""

    trim_tail_frames: Count = 0
    """TrimTail: feature frames that are cut off at an utterance's end, at most; 0 for none."""


def spec_augment(
    features: Tensor,
    lengths: Tensor,
    config: SpecAugmentConfig,
    generator: torch.Generator,
    copies: int = 1,
) -> Tensor:
    """Warped and masked features (N, T, F), the same for the same state of `generator`.

    Of several copies, (copies N, T, F): the first of all utterances, then the second. They are warped alike.

    What is masked gets the utterance's own mean in each bin: neutral before and after normalisation.
    Padding is neither read nor changed.
    """
    N = len(features)
    features, lengths = features.repeat(copies, 1, 1), lengths.to(features.device).repeat(copies)
    _, T, F = features.shape
    frame = torch.arange(T, device=features.device)
    exists = (frame < lengths[:, None])[:, :, None]
    mean = features.masked_fill(~exists, 0).sum(1, keepdim=True) / lengths.clamp(min=1)[:, None, None]

    draws = 2 * (1 + config.num_time_masks + config.num_frequency_masks)
    # doubles, so that a draw times a length never rounds up to the length
    uniform = torch.rand(copies * N, draws, generator=generator, device=generator.device, dtype=torch.float64)
    parts = [2, 2 * config.num_time_masks, 2 * config.num_frequency_masks]
    warp, time, frequency = uniform.to(features.device).split(parts, dim=1)
    warp = warp[:N].repeat(copies, 1)
    warped = _warp(features, lengths, config.max_time_warp, warp) if config.max_time_warp else features
    longest = (config.time_mask_share * lengths).long().clamp(max=config.time_mask_length)
    masked = _masks(T, lengths, longest, time)[:, :, None]
    bins = torch.full_like(lengths, F)
    masked = masked | _masks(F, bins, bins.clamp(max=config.frequency_mask_length), frequency)[:, None, :]
    return torch.where(exists, torch.where(masked, mean, warped), features)


def trim_tail(lengths: Tensor, at_least: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """(N): how many frames are left when 1 to `most`, drawn evenly, are cut off at the end.

    TrimTail (Song et al., 2022, arXiv 2211.00522): what is said last must be said by then, so that a model
    learns to say everything sooner. As in the authors' code, every utterance is cut unless that
    would take half of it. Here one that would have fewer than its `at_least` frames, those that an
    alignment of its labels needs, stays whole too.
    """
    uniform = torch.rand(len(lengths), generator=generator, device=generator.device, dtype=torch.float64)
    cut = 1 + (uniform.to(lengths.device) * most).long()
    left = lengths - cut
    return torch.where((2 * cut < lengths) & (left >= at_least), left, lengths)


def _masks(size: int, lengths: Tensor, longest: Tensor, uniform: Tensor) -> Tensor:
    """(N, size): True under any of the masks, whose widths and places are drawn evenly."""
    width = (uniform[:, 0::2] * (longest[:, None] + 1)).long()
    start = (uniform[:, 1::2] * (lengths[:, None] - width + 1)).long()
    position = torch.arange(size, device=uniform.device)
    covered = (position >= start[:, :, None]) & (position < (start + width)[:, :, None])
    return covered.any(1)


def _warp(features: Tensor, lengths: Tensor, most: int, uniform: Tensor) -> Tensor:
    """Moves one frame of each utterance by at most `most`; first and last frame stay in place."""
    N, T, _ = features.shape
    most_here = ((lengths - 3) // 2).clamp(min=0, max=most)
    room = (lengths - 2 - 2 * most_here).clamp(min=1)
    source = 1 + most_here + (uniform[:, 0] * room).long()
    target = source - most_here + (uniform[:, 1] * (2 * most_here + 1)).long()
    last = lengths - 1

    frame = torch.arange(T, device=features.device)
    left = source / target
    right = (last - source) / (last - target).clamp(min=1)
    position = torch.where(
        frame <= target[:, None],
        frame * left[:, None],
        source[:, None] + (frame - target[:, None]) * right[:, None],
    )
    position = position.clamp(0, T - 1)  # padding would lie beyond
    before = position.long()
    after = torch.minimum(before + 1, last.clamp(min=0)[:, None])
    share = (position - before).to(features.dtype)[:, :, None]
    utterance = torch.arange(N, device=features.device)[:, None]
    return torch.lerp(features[utterance, before], features[utterance, after], share)
