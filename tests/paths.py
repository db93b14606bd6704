"""The criterion by its definition: every path is written down, weighed and added up.

Nothing here knows of lattices, states or recursions, so it can judge the code that does.
"""

import itertools
import math

import torch
from torch import Tensor

from brctc import BayesRisk
from brctc.kernels.ctc.groups import PEAK_TOLERANCE


def runs_of(path: tuple[int, ...], blank: int) -> list[tuple[int, int, int]]:
    """(label, first frame, last frame) of every run of a non-blank class; frames count from 1."""
    runs, t = [], 0
    for label, group in itertools.groupby(path):
        length = len(list(group))
        if label != blank:
            runs.append((label, t + 1, t + length))
        t += length
    return runs


def paths_of(target: list[int], frames: int, classes: int, blank: int) -> list[tuple[int, ...]]:
    every = itertools.product(range(classes), repeat=frames)
    return [path for path in every if [run[0] for run in runs_of(path, blank)] == target]


class Enumeration:
    """All paths of one utterance, with their log probabilities (differentiable)."""

    def __init__(self, log_probs: Tensor, target: list[int], blank: int = 0) -> None:
        frames, classes = log_probs.shape
        self.frames, self.target = frames, target
        paths = paths_of(target, frames, classes, blank)
        self.paths = torch.tensor(paths, dtype=torch.long).reshape(len(paths), frames)
        runs = [runs_of(path, blank) for path in paths]
        size = len(paths), len(target)
        self.start = torch.tensor([[run[1] for run in path] for path in runs], dtype=torch.long).reshape(size)
        self.end = torch.tensor([[run[2] for run in path] for path in runs], dtype=torch.long).reshape(size)
        self.log_p = log_probs[torch.arange(frames), self.paths].sum(1)

    def log_groups(self, event: str) -> Tensor:
        """(U, T): log P_u(tau)."""
        when = self.end if event == "end" else self.start
        table = []
        for u in range(len(self.target)):
            for tau in range(1, self.frames + 1):
                members = self.log_p[when[:, u] == tau]
                table.append(members.logsumexp(0) if len(members) else torch.tensor(-math.inf))
        return torch.stack(table).reshape(len(self.target), self.frames) if table else torch.empty(0)

    def loss(self, tokens: str = "last", event: str = "end", log_risk: Tensor | None = None) -> Tensor:
        """-sum_u w_u log sum_paths r(u, tau_u(path)) p(path), log_risk being a (U, T) table."""
        if len(self.paths) == 0:
            return torch.tensor(math.inf)
        if log_risk is None or not self.target:
            return -self.log_p.logsumexp(0)
        when = self.end if event == "end" else self.start
        chosen = range(len(self.target)) if tokens == "each" else [len(self.target) - 1]
        objectives = [(self.log_p + log_risk[u, when[:, u] - 1]).logsumexp(0) for u in chosen]
        return -torch.stack(objectives).mean()

    def early_finish(self, factor: float) -> Tensor:
        tau = torch.arange(1, self.frames + 1, dtype=torch.double)
        return self.loss("last", "end", (-factor * tau / self.frames).expand(len(self.target), -1))

    def early_emission(self, factor: float) -> Tensor:
        if len(self.paths) == 0 or not self.target:
            return self.loss()
        tau = torch.arange(1, self.frames + 1, dtype=torch.double)
        groups = self.log_groups("end").detach()
        highest = groups >= groups.amax(1, keepdim=True) - PEAK_TOLERANCE
        peak = highest.int().argmax(1, keepdim=True) + 1
        return self.loss("each", "end", -factor * (tau - peak) / self.frames)

    def delay_penalty(self, penalty: float) -> Tensor:
        """-log sum_paths p(path) exp(-penalty * (each token's start, from 0, less the middle))."""
        if len(self.paths) == 0:
            return self.loss()
        delay = (self.start.double() - 1 - (self.frames - 1) / 2).sum(1)
        return -(self.log_p - penalty * delay).logsumexp(0)


class TableRisk(BayesRisk):
    """A risk that reads its values from a table, (N, U, T) or broadcastable."""

    def __init__(self, table: Tensor, tokens: str, event: str) -> None:
        self.table, self.tokens, self.event = table, tokens, event

    def log_risk(self, groups):
        return self.table.to(groups.log_share)

    def __repr__(self) -> str:
        return f"TableRisk({self.tokens}, {self.event})"
