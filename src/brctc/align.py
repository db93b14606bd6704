"""What a model's alignment is: group posteriors, the best path and its token times."""

from typing import NamedTuple

import torch
from torch import Tensor

from brctc.kernels.backend import backend_of
from brctc.kernels.ctc import cpu
from brctc.kernels.ctc.groups import PathGroups
from brctc.kernels.ctc.inputs import check_values, local_labels, pad_targets, prepare_inputs
from brctc.kernels.tensors import Lengths, check_floating, check_has_values
from brctc.loss import group_paths


def path_groups(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    event: str = "end",
    blank: int = 0,
    from_logits: bool = False,
    backend: str | None = None,
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


def best_path(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    from_logits: bool = False,
) -> BestPath:
    """The paper's ali(l, x), by Viterbi search, with the frames of its tokens.

    Runs on the CPU, wherever the tensors are; the results are on their device.
    """
    check_floating("log_probs", log_probs)
    check_has_values("log_probs", log_probs)
    inputs, batched = prepare_inputs(
        log_probs.detach(), targets, input_lengths, target_lengths, blank, from_logits
    )
    device = inputs.scores.device
    inputs = local_labels(pad_targets(inputs).with_scores(inputs.scores.cpu()))
    found = (result.to(device) for result in cpu.best_path(inputs))
    return BestPath(*(found if batched else (result.squeeze(0) for result in found)))


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
    # an utterance without frames is one that no path fits into
    check_values(
        inputs._replace(targets=inputs.targets.clamp(min=1), input_lengths=inputs.input_lengths.clamp(min=1))
    )
    # a frame at least, even for no label: the loss takes no utterance without one
    needed = frames_needed(pad_targets(inputs).targets, inputs.target_lengths).clamp(min=1).tolist()
    given = inputs.input_lengths.tolist()
    return [Infeasible(n, a, b) for n, (a, b) in enumerate(zip(needed, given, strict=True)) if a > b]
