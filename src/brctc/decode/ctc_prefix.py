"""The CTC's part in a label-synchronous search: how probable is it that the output begins like this?"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FLOOR = -1e5  # stands for log 0 where differences of sums are taken: far below anything that counts


class PrefixState(NamedTuple):
    """What is known of prefixes, all of as many tokens, U."""

    said: Tensor
    """(N, H, T + 1 - U): log probability that the first t frames say exactly the prefix; t counts from
    U, for a prefix has no more tokens than frames."""
    last: Tensor
    """(N, H): the prefix's last token; the blank for the empty prefix."""


class CTCPrefixScorer:
    """Log prefix probabilities under a CTC output, for all hypotheses and all classes at once.

    The recursions over frames of Watanabe et al. (2017, algorithm 2) are linear: solved by cumulative
    sums (`extend`) and one matrix product (`scores`), there is no loop over frames in Python. Products
    are taken in double precision around each prefix's own maximum, so an extension is lost (-inf) only
    where it is some 700 nats less probable than another way to go on.
    """

    def __init__(self, logits: Tensor, lengths: Tensor, blank: int = 0) -> None:
        """logits: (N, T, C) of the CTC output; lengths: (N)."""
        log_probs = logits.detach().double().log_softmax(-1).transpose(1, 2)
        self.frames = log_probs.shape[2]
        outside = torch.arange(self.frames, device=logits.device) >= lengths.to(logits.device)[:, None]
        # behind its end an utterance is certain to say blank: no sum changes there
        log_probs = log_probs.masked_fill(outside[:, None], -torch.inf)
        log_probs[:, blank].masked_fill_(outside, 0)
        self.blank = blank
        self._log_blank = log_probs[:, blank, None]  # (N, 1, T)
        self._blank = self._log_blank.exp()
        self._probs = log_probs.exp()  # (N, C, T)
        self._probs[:, blank] = 0  # a blank is no token
        # (N, C, T + 1): log probability that the first t frames say the class and nothing else
        self._run = F.pad(log_probs.clamp(min=FLOOR).masked_fill_(outside[:, None], 0).cumsum(2), (1, 0))
        self._blank_run = self._run[:, blank, None]
        # (N, 1, T): taken off what a token says to its last frame, which is none behind the end
        self._end_run = self._blank_run[:, :, 1:].masked_fill(outside[:, None], torch.inf)

    def start(self) -> PrefixState:
        """The empty prefix of each utterance: H = 1."""
        return PrefixState(self._blank_run, torch.full_like(self._blank_run[..., 0], self.blank).long())

    def scores(self, state: PrefixState) -> tuple[Tensor, Tensor]:
        """(N, H, C): log probability that the output begins with the prefix and class c (-inf for the
        blank); (N, H): that it is the prefix and nothing else.
        """
        first = self.frames + 1 - state.said.shape[2]
        highest = state.said.amax(-1, keepdim=True).clamp(min=FLOOR)
        before = (state.said[:, :, :-1] - highest).exp_()
        begins = torch.bmm(before, self._probs[:, :, first:].transpose(1, 2))
        # a token that repeats the last one is a new one only behind a blank
        last = state.last[:, :, None]
        behind = before[:, :, :-1] * self._blank[:, :, first:-1]
        token = self._probs[:, :, first + 1 :].gather(1, last.expand(-1, -1, behind.shape[2]))
        begins.scatter_(2, last, torch.linalg.vecdot(behind, token)[:, :, None])
        return begins.log_().add_(highest), state.said[:, :, -1]

    def extend(self, state: PrefixState, parents: Tensor, tokens: Tensor) -> PrefixState:
        """The states of prefixes `parents` (N, K), numbers along H, with `tokens` (N, K) behind them."""
        left = state.said.shape[2] - 1
        first = self.frames - left
        if not left:
            raise ValueError(f"the prefixes have {first} tokens, and there are no more frames")
        before = state.said.gather(1, parents[:, :, None].expand(-1, -1, left))
        behind_blank = before[:, :, :-1] + self._log_blank[:, :, first:-1]
        repeats = tokens == state.last.gather(1, parents)
        before = torch.where(repeats[:, :, None], F.pad(behind_blank, (1, 0), value=-torch.inf), before)
        # paths with the token in frame t: x[t] = (x[t - 1] + before[t - 1]) p[t], in logs
        run = self._run[:, :, first:].gather(1, tokens[:, :, None].expand(-1, -1, left + 1))
        token = (before - run[:, :, :-1]).logcumsumexp(-1).add_(run[:, :, 1:])
        # and all paths, of which the others have blanks behind it: y[t] = x[t] + y[t - 1] p_blank[t]
        said = token.sub_(self._end_run[:, :, first:]).logcumsumexp(-1)
        return PrefixState(said.add_(self._blank_run[:, :, first + 1 :]), tokens)
