"""The CTC's part in a label-synchronous search: how probable is it that the output begins like this?"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
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
    emission: Tensor
    """(N, H, T): log probability of that token in each frame."""


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
        # behind its end an utterance is certain to say blank: no sum changes there
        log_probs = torch.where(inside[:, :, None], log_probs, -torch.inf)
        log_probs[:, :, blank] = torch.where(inside, log_probs[:, :, blank], 0)
        self.blank = blank
        self._log_probs, self._probs = log_probs, log_probs.exp()
        self._outside = ~inside[:, None]  # (N, 1, T)
        self._blank_run = self._run(self._emission(torch.full_like(lengths, blank)[:, None]))

    def start(self) -> PrefixState:
        """The empty prefix of each utterance: H = 1."""
        blank = torch.full((len(self._probs), 1), self.blank, device=self._probs.device)
        in_token = torch.full_like(self._blank_run, -torch.inf)
        return PrefixState(in_token, self._blank_run, blank, self._emission(blank))

    def scores(self, state: PrefixState) -> tuple[Tensor, Tensor]:
        """(N, H, C): log probability that the output begins with the prefix and class c (-inf for the
        blank); (N, H): that it is the prefix and nothing else.
        """
        total = torch.logaddexp(state.in_token, state.in_blank)
        before = total[:, :, :-1]
        highest = before.amax(-1, keepdim=True).clamp(min=FLOOR)
        begins = torch.matmul((before - highest).exp(), self._probs).log() + highest
        # a token that repeats the last one is a new one only behind a blank
        again = (state.in_blank[:, :, :-1] + state.emission).logsumexp(-1, keepdim=True)
        begins.scatter_(2, state.last[:, :, None], again)
        begins[:, :, self.blank] = -torch.inf
        return begins, total[:, :, -1]

    def extend(self, state: PrefixState, parents: Tensor, tokens: Tensor) -> PrefixState:
        """The states of prefixes `parents` (N, K), numbers along H, with `tokens` (N, K) behind them."""
        rows = parents[:, :, None].expand(-1, -1, state.in_blank.shape[2])
        in_blank, in_token = state.in_blank.gather(1, rows), state.in_token.gather(1, rows)
        repeats = (tokens == state.last.gather(1, parents))[:, :, None]
        before = torch.where(repeats, in_blank, torch.logaddexp(in_blank, in_token))
        emission = self._emission(tokens)
        in_token = _follow(before, self._run(emission))
        in_token[:, :, 1:].masked_fill_(self._outside, -torch.inf)
        return PrefixState(in_token, _follow(in_token, self._blank_run), tokens, emission)

    def _emission(self, tokens: Tensor) -> Tensor:
        """(N, K, T): log probability of each of the tokens (N, K) in each frame."""
        index = tokens.to(self._log_probs.device)[:, None].expand(-1, self._log_probs.shape[1], -1)
        return self._log_probs.gather(2, index).transpose(1, 2)

    def _run(self, emission: Tensor) -> Tensor:
        """(N, K, T + 1): log probability that the first t frames say the token and nothing else.

        Behind the end of an utterance it does not matter, and stays as it is.
        """
        return F.pad(emission.clamp(min=FLOOR).masked_fill_(self._outside, 0).cumsum(2), (1, 0))


def _follow(before: Tensor, run: Tensor) -> Tensor:
    """x with x[0] = 0 and x[t + 1] = (x[t] + before[t]) p[t], all in logs; run: the sums of log p so far."""
    entered = (before[:, :, :-1] - run[:, :, :-1]).logcumsumexp(-1) + run[:, :, 1:]
    return F.pad(entered, (1, 0), value=-torch.inf)
