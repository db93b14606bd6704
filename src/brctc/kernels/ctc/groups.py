"""The paths of a batch in groups: what a custom risk is asked about."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from brctc import _native
from brctc.kernels.operators import is_traced

# Two group posteriors that differ by less (in nats) count as tied when a peak is looked for: the
# earliest frame wins, whatever the rounding. native/emission_loss.h and triton_groups.py have the same.
PEAK_TOLERANCE = 1e-4

Event = Literal["end", "start"]
Tokens = Literal["last", "each"]


@dataclass(frozen=True)
class PathGroups:
    """The paths of a batch, grouped for every token by the frame of its event.

    Group (n, u, tau) holds the paths of utterance n on which token u ends (or starts) at frame
    tau. Axes: N utterances, U tokens, T frames; groups that hold no path, padding among them,
    have posterior zero (-inf).
    """

    log_share: Tensor
    """(N, U, T): the group's part of all paths, log P_u(tau) - log P(l|x)."""
    log_likelihood: Tensor
    """(N): log P(l|x), the summed probability of all paths."""
    targets: Tensor
    """(N, U): the labels; behind target_lengths, padding."""
    input_lengths: Tensor
    """(N)"""
    target_lengths: Tensor
    """(N)"""
    event: Event
    """What tau says of the token."""

    @property
    def log_posterior(self) -> Tensor:
        """(N, U, T): log P_u(tau), the group's summed path probability."""
        # not added where there is no path: the gradient there is NaN as soon as a risk sums over frames
        posterior = self.log_share + self.log_likelihood[:, None, None]
        return torch.where(self.log_share > -math.inf, posterior, -math.inf)

    @property
    def frame(self) -> Tensor:
        """(T): tau, counted from 1 as in the paper."""
        frames = self.log_share.shape[-1]
        return torch.arange(1, frames + 1, device=self.log_share.device, dtype=self.log_share.dtype)

    @property
    def peak_frame(self) -> Tensor:
        """(N, U): tau', the frame of each token's largest group; the earliest of ties."""
        share = self.log_share.detach()
        if not is_traced(share) and not share.is_neg():
            # in one pass: seven operators take as long as the rest of a risk
            peaks = share.new_empty(share.shape[:2], dtype=torch.int64)
            if _native.peaks(share, PEAK_TOLERANCE, peaks):
                return peaks
        highest = share >= share.amax(-1, keepdim=True) - PEAK_TOLERANCE
        return highest.to(torch.uint8).argmax(-1) + 1

    @property
    def token_exists(self) -> Tensor:
        """(N, U): False in the padding."""
        index = torch.arange(self.targets.shape[1], device=self.targets.device)
        return index < self.target_lengths[:, None]
