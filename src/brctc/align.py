"""What a model's alignment is: group posteriors, the best path and its token times."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from brctc.kernels.backend import BackendName, backend_of
from brctc.kernels.ctc import cpu
from brctc.kernels.ctc.groups import Event, PathGroups
from brctc.kernels.ctc.inputs import Inputs, check_values, local_labels, pad_targets, prepare_inputs
from brctc.kernels.tensors import Lengths, check_floating, check_has_values
from brctc.loss import group_paths


def path_groups(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    event: Event = "end",
    blank: int = 0,
    from_logits: bool = False,
    backend: BackendName | None = None,
) -> PathGroups:
    """The paths of each utterance, grouped by the frame where each token ends (or starts).

    `.log_posterior` (N, U, T) is log P_u(tau): exact, and differentiable. Unbatched input is a batch
    of one here.
    """
    inputs, _ = prepare_inputs(log_probs, targets, input_lengths, target_lengths, blank, from_logits)
    return group_paths(inputs, event, backend_of(backend, inputs.scores).ctc)


class BestPath(NamedTuple):
    """The most probable path of each utterance. Frames count from 0; -1 stands for none."""

    path: Tensor
    """(N, T): the class of every frame."""
    start: Tensor
    """(N, U): the first frame of each token."""
    end: Tensor
    """(N, U): the frame behind each token's last: the paper's tau, which counts from 1."""
    score: Tensor
    """(N): the path's log probability; -inf if the utterance has no path."""


WILDCARD = -1
"""In targets: anything may be said here, or nothing. In a path: a frame of that."""


def best_path(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    from_logits: bool = False,
    *,
    wildcards: bool = False,
    wildcard_price: float = 1.0,
) -> BestPath:
    """The paper's ali(l, x), by Viterbi search, with the frames of its tokens.

    Runs on the CPU, wherever the tensors are; the results are on their device. Long utterances take little
    memory: the scores of a few frames are kept, and the others found again near the path.

    With `wildcards`, `brctc.WILDCARD` (-1) in the targets stands for what was not transcribed. It is a
    state between two labels, in the blank's place: its frames are blanks, or any class for `wildcard_price`
    nats less than the best one has. So a frame that fits a label well is worth more as that label. Its start
    and end are those of its frames that are no blanks.
    """
    check_floating("log_probs", log_probs)
    check_has_values("log_probs", log_probs)
    if isinstance(wildcard_price, bool) or not 0 <= wildcard_price < math.inf:
        raise ValueError(f"wildcard_price is {wildcard_price!r}, expected a number of nats from 0")
    inputs, batched = prepare_inputs(
        log_probs.detach(), targets, input_lengths, target_lengths, blank, from_logits
    )
    device = inputs.scores.device
    inputs = local_labels(_in_rows(inputs).with_scores(inputs.scores.cpu()))
    if wildcards:
        found = _best_wild_path(inputs, float(wildcard_price))
    else:
        found = BestPath(*cpu.best_path(inputs, None, 0.0))
    found = (result.to(device) for result in found)
    return BestPath(*(found if batched else (result.squeeze(0) for result in found)))


def _in_rows(inputs: Inputs) -> Inputs:
    """With (N, U) targets, whatever they hold."""
    if inputs.targets.dim() == 2:
        return inputs
    labels = inputs._replace(targets=torch.full_like(inputs.targets, (inputs.blank + 1) % 2))
    check_values(labels)  # of lengths that do not fit
    rows = list(torch.split(inputs.targets, inputs.target_lengths.tolist()))
    return inputs._replace(targets=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))


def _best_wild_path(inputs: Inputs, price: float) -> BestPath:
    """Takes wildcards out of the targets, marks the gaps they leave, and puts their frames in again."""
    targets, lengths = inputs.targets, inputs.target_lengths
    asked = torch.arange(targets.shape[1]) < lengths[:, None]
    is_wild = asked & (targets == WILDCARD)
    gap = (asked & ~is_wild).cumsum(1)  # how many labels stand in front of each place, itself among them
    labels = [row[chosen] for row, chosen in zip(targets, asked & ~is_wild, strict=True)]
    padded = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True)
    wild = torch.zeros(padded.shape[0], padded.shape[1] + 1, dtype=torch.bool)
    rows = torch.arange(len(targets))[:, None].expand_as(targets)
    wild[rows[is_wild], gap[is_wild]] = True
    kept = torch.tensor([len(row) for row in labels])
    found = BestPath(*cpu.best_path(inputs._replace(targets=padded, target_lengths=kept), wild, price))
    start, end = torch.full_like(targets, -1), torch.full_like(targets, -1)
    is_label = asked & ~is_wild
    for whole, part in ((start, found.start), (end, found.end)):
        whole[is_label] = part[rows[is_label], gap[is_label] - 1]
    for n, u in is_wild.nonzero().tolist():
        left = int(found.end[n, gap[n, u] - 1]) if gap[n, u] else 0
        right = int(found.start[n, gap[n, u]]) if gap[n, u] < kept[n] else int(inputs.input_lengths[n])
        frames = (found.path[n, left:right] == WILDCARD).nonzero().flatten() + left
        if len(frames):
            start[n, u], end[n, u] = frames[0], frames[-1] + 1
    return BestPath(found.path, start, end, found.score)


class Infeasible(NamedTuple):
    """An utterance that has fewer frames than its target needs."""

    utterance: int
    frames_needed: int
    frames_given: int

    def __str__(self) -> str:
        return f"utterance {self.utterance} needs {self.frames_needed} frames and has {self.frames_given}"


def frames_needed(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """(N): the frames of the shortest alignment of (N, U) targets, one for each label and one between
    equal neighbours."""
    place = torch.arange(targets.shape[1], device=targets.device)[1:]
    repeats = (targets[:, 1:] == targets[:, :-1]) & (place < target_lengths.to(targets.device)[:, None])
    return repeats.sum(1) + target_lengths.to(targets.device)


def check_feasible(targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> list[Infeasible]:
    """Names every utterance that no path fits into; an empty list if all are well.

    A target needs a frame for each label, and one more between two equal neighbours.
    """
    input_lengths = torch.as_tensor(input_lengths).reshape(-1)
    targets = torch.as_tensor(targets)
    frames = max(1, int(input_lengths.max())) if input_lengths.numel() else 1
    classes = max(2, int(targets.max()) + 1) if targets.numel() else 2
    scores = torch.empty(1).expand(frames, input_lengths.numel(), classes)
    # labels are not checked here: there is no vocabulary to check them against
    inputs, _ = prepare_inputs(scores, targets, input_lengths, target_lengths, 0, False)
    for n, length in enumerate(inputs.input_lengths.tolist()):
        if length < 0:
            raise ValueError(f"input_lengths[{n}] is {length}, expected 0 or more")
    check_values(inputs._replace(targets=inputs.targets.clamp(min=1)))
    needed = frames_needed(pad_targets(inputs).targets, inputs.target_lengths).tolist()
    given = inputs.input_lengths.tolist()
    return [Infeasible(n, a, b) for n, (a, b) in enumerate(zip(needed, given, strict=True)) if a > b]
