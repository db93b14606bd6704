"""The CTC's part in a label-synchronous search: how probable is it that the output begins like this?"""

from typing import NamedTuple

import torch
from torch import Tensor

FLOOR = -1e5  # stands for log 0 where differences of sums are taken: far below anything that counts


class PrefixState(NamedTuple):
    """Forward variables of prefixes: log probability that the first t frames say exactly the prefix."""

    in_token: Tensor
    """(N, H, T + 1): of the paths whose frame t is the prefix's last token; t counts from 0."""
    in_blank: Tensor
    """(N, H, T + 1): of the paths whose frame t is blank."""
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
        log_probs = logits.detach().double().log_softmax(-1)
        inside = torch.arange(logits.shape[1], device=logits.device) < lengths.to(logits.device)[:, None]
        self._outside = ~inside[:, None]  # (N, 1, T)
        # behind its end an utterance is certain to say blank: no sum changes there
        log_probs = torch.where(inside[:, :, None], log_probs, -torch.inf)
        log_probs[:, :, blank] = torch.where(inside, log_probs[:, :, blank], 0)
        self.blank = blank
        self._probs = log_probs.exp()
        self._by_class = log_probs.transpose(1, 2).contiguous()  # (N, C, T)
        # log probability of nothing but class c in the first t frames; behind the end it does not matter
        run = self._by_class.clamp(min=FLOOR).masked_fill_(self._outside, 0).cumsum(2)
        self._runs = torch.nn.functional.pad(run, (1, 0))  # (N, C, T + 1)

    def start(self) -> PrefixState:
        """The empty prefix of each utterance: (N, 1, T + 1)."""
        in_blank = self._runs[:, self.blank : self.blank + 1]
        in_token = torch.full_like(in_blank, -torch.inf)
        return PrefixState(
            in_token, in_blank, torch.full(in_blank.shape[:2], self.blank, device=in_blank.device)
        )

    def scores(self, state: PrefixState) -> tuple[Tensor, Tensor]:
        """(N, H, C): log probability that the output begins with the prefix and class c (-inf for the
        blank); (N, H): that it is the prefix and nothing else.
        """
        total = torch.logaddexp(state.in_token, state.in_blank)
        before = total[:, :, :-1]
        highest = before.amax(-1, keepdim=True).clamp(min=FLOOR)
        begins = torch.matmul((before - highest).exp(), self._probs).log() + highest
        # a token that repeats the last one is a new one only behind a blank
        repeat = state.last[:, :, None]
        emitted = self._by_class.gather(1, repeat.expand(-1, -1, before.shape[2]))
        begins.scatter_(2, repeat, (state.in_blank[:, :, :-1] + emitted).logsumexp(-1, keepdim=True))
        begins[:, :, self.blank] = -torch.inf
        return begins, total[:, :, -1]

    def extend(self, state: PrefixState, parents: Tensor, tokens: Tensor) -> PrefixState:
        """The states of prefixes `parents` (N, K), numbers along H, with `tokens` (N, K) behind them."""
        frames = state.in_blank.shape[2]
        rows = parents[:, :, None].expand(-1, -1, frames)
        in_blank, in_token = state.in_blank.gather(1, rows), state.in_token.gather(1, rows)
        repeats = (tokens == state.last.gather(1, parents))[:, :, None]
        before = torch.where(repeats, in_blank, torch.logaddexp(in_blank, in_token))
        in_token = _follow(before, self._runs.gather(1, tokens[:, :, None].expand_as(rows)))
        in_token[:, :, 1:].masked_fill_(self._outside, -torch.inf)
        in_blank = _follow(in_token, self._runs[:, self.blank, None])
        return PrefixState(in_token, in_blank, tokens)


def _follow(before: Tensor, run: Tensor) -> Tensor:
    """x with x[0] = 0 and x[t + 1] = (x[t] + before[t]) p[t], all in logs; run: the sums of log p so far."""
    entered = (before[:, :, :-1] - run[:, :, :-1]).logcumsumexp(-1) + run[:, :, 1:]
    return torch.nn.functional.pad(entered, (1, 0), value=-torch.inf)
