"""The CTC's part in a label-synchronous search: how probable is it that the output begins like this?"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FLOOR = -1e5  # stands for log 0 where differences of sums are taken: far below anything that counts


class PrefixState(NamedTuple):
    """What is known of prefixes."""

    before: Tensor
    """(N, H, T): log probability that the frames before frame t say exactly the prefix."""
    ends: Tensor
    """(N, H): that all frames do."""
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
        logits = logits.detach().double()
        outside = torch.arange(logits.shape[1], device=logits.device) >= lengths.to(logits.device)[:, None]
        self.blank, self._logits, self._outside = blank, logits, outside[:, None]  # (N, 1, T)
        self._log_sum = logits.logsumexp(-1, keepdim=True)
        # behind its end an utterance is certain to say blank: no sum changes there
        log_blank = (logits[:, None, :, blank] - self._log_sum[:, None, :, 0]).masked_fill(self._outside, 0)
        self._log_blank, self._blank = log_blank[:, :, :-1], log_blank[:, :, :-1].exp()
        self._probs = (logits - self._log_sum).exp_().masked_fill_(outside[:, :, None], 0)  # (N, T, C)
        self._probs[:, :, blank] = 0  # a blank is no token
        self._before_all = F.pad(log_blank.clamp(min=FLOOR).cumsum(2), (1, 0))
        self._blank_run = self._before_all[:, :, 1:]
        # the same, to be taken off: behind the end it leaves nothing, for no token is said there
        self._token_end = self._blank_run.masked_fill(self._outside, torch.inf)

    def start(self) -> PrefixState:
        """The empty prefix of each utterance: H = 1."""
        blank = torch.full((len(self._logits), 1), self.blank, device=self._logits.device)
        return PrefixState(self._before_all[:, :, :-1], self._blank_run[:, :, -1], blank)

    def scores(self, state: PrefixState) -> tuple[Tensor, Tensor]:
        """(N, H, C): log probability that the output begins with the prefix and class c (-inf for the
        blank); (N, H): that it is the prefix and nothing else.
        """
        highest = state.before.amax(-1, keepdim=True).clamp_(min=FLOOR)
        before = (state.before - highest).exp_()
        begins = torch.bmm(before, self._probs)
        # a token that repeats the last one is a new one only behind a blank
        last = state.last[:, :, None]
        behind_blank = before[:, :, :-1] * self._blank
        token = _of_classes(self._probs[:, 1:], state.last)
        begins.scatter_(2, last, torch.linalg.vecdot(behind_blank, token)[:, :, None])
        return begins.log_().add_(highest), state.ends

    def extend(self, state: PrefixState, parents: Tensor, tokens: Tensor) -> PrefixState:
        """The states of prefixes `parents` (N, K), numbers along H, with `tokens` (N, K) behind them."""
        before = state.before.gather(1, parents[:, :, None].expand(-1, -1, state.before.shape[2]))
        behind_blank = _later(before[:, :, :-1] + self._log_blank)
        repeats = tokens == state.last.gather(1, parents)
        before = torch.where(repeats[:, :, None], behind_blank, before)
        # paths with the token in frame t: x[t] = (x[t - 1] + before[t]) p[t], in logs
        run = self._run(tokens)
        token = (before - run[:, :, :-1]).logcumsumexp(-1).add_(run[:, :, 1:])
        # all paths, the others have blanks behind the token: y[t] = x[t] + y[t - 1] p_blank[t]
        said = token.sub_(self._token_end).logcumsumexp(-1).add_(self._blank_run)
        return PrefixState(_later(said[:, :, :-1]), said[:, :, -1], tokens)

    def _run(self, tokens: Tensor) -> Tensor:
        """(N, K, T + 1): log probability that the first t frames say a token (N, K) and nothing else."""
        log_probs = _of_classes(self._logits, tokens) - self._log_sum.transpose(1, 2)
        return F.pad(log_probs.clamp(min=FLOOR).masked_fill(self._outside, 0).cumsum(2), (1, 0))


def _of_classes(table: Tensor, classes: Tensor) -> Tensor:
    """(N, T, C) of classes (N, K): (N, K, T)."""
    return table.gather(2, classes[:, None].expand(-1, table.shape[1], -1)).transpose(1, 2)


def _later(log_probs: Tensor) -> Tensor:
    """One frame later; at first there is nothing."""
    return F.pad(log_probs, (1, 0), value=-torch.inf)
