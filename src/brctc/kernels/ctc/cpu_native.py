"""The calls into the native core. They take prepared inputs, hand over addresses, and know no autograd."""

from typing import NamedTuple

import torch
from torch import Tensor

from brctc import _native
from brctc.kernels.ctc.closed_form import ClosedForm
from brctc.kernels.ctc.inputs import Inputs, check_shapes, local_labels, native_batch
from brctc.kernels.operators import outside_graphs
from brctc.kernels.reduction import Reduction
from brctc.kernels.tensors import local_tensor


class _Call:
    """A checked batch, with the scores that the native side points into kept alive."""

    def __init__(self, inputs: Inputs) -> None:
        # also in a second backward pass: labels may have changed behind torch's back, in a numpy buffer
        plain = None if inputs.scores.is_neg() else _native.Input.of(*inputs, torch.get_num_threads())
        self.inputs = inputs if plain else _laid_out(inputs)
        self.native = plain or native_batch(self.inputs)


def _laid_out(inputs: Inputs) -> Inputs:
    """As native code reads it."""
    check_shapes(inputs)
    scores = inputs.scores
    # asked before it is done: each operator costs microseconds, even one that changes nothing
    if scores.stride(2) != 1 or scores.is_neg():
        scores = scores.detach().resolve_neg().contiguous()
    return local_labels(inputs.with_scores(scores))


@outside_graphs
def loss(
    inputs: Inputs, form: ClosedForm, reduction: Reduction, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The reduced loss, and its gradient if that is wanted."""
    call = _Call(inputs)
    kind, zero_infinity = reduction
    result = inputs.scores.new_empty(inputs.scores.shape[1:2] if kind == "none" else ())
    dense = _native.loss(
        call.native, int(form.kind), form.factor, kind, zero_infinity, result.data_ptr(), gradient
    )
    return result, dense


@outside_graphs
def path_groups(inputs: Inputs, at_start: bool) -> tuple[Tensor, Tensor]:
    """log_share (N, U, T) and log_likelihood (N)."""
    scores, targets = inputs.scores, inputs.targets
    _check_padded(targets)
    call = _Call(inputs)
    log_share = scores.new_empty(scores.shape[1], targets.shape[1], scores.shape[0])
    log_likelihood = scores.new_empty(scores.shape[1])
    _native.groups(call.native, at_start, targets.shape[1], log_share.data_ptr(), log_likelihood.data_ptr())
    return log_share, log_likelihood


@outside_graphs
def path_groups_backward(
    grad_share: Tensor, grad_likelihood: Tensor, inputs: Inputs, at_start: bool
) -> Tensor:
    """The gradient by the scores. Runs the lattice again: that costs less than to keep it."""
    scores, targets = inputs.scores, inputs.targets
    _check_padded(targets)
    call = _Call(inputs)
    batch, width = targets.shape
    if tuple(grad_share.shape) != (batch, width, scores.shape[0]):
        raise ValueError(f"grad_share has shape {tuple(grad_share.shape)}, expected (N, U, T)")
    if tuple(grad_likelihood.shape) != (batch,):
        raise ValueError(f"grad_likelihood has shape {tuple(grad_likelihood.shape)}, expected (N)")
    shares = grad_share.detach().to(scores.dtype).contiguous()
    likelihoods = grad_likelihood.detach().to(torch.float64).contiguous()
    return _native.groups_backward(call.native, at_start, width, shares.data_ptr(), likelihoods.data_ptr())


class Weighed(NamedTuple):
    """The loss of groups that a custom risk weighs, and its derivatives."""

    loss: Tensor  # reduced
    grad_share: Tensor  # (N, U, T)
    grad_likelihood: Tensor  # (N), in double


@outside_graphs
def weigh_groups(
    log_share: Tensor,
    log_risk: Tensor,
    log_likelihood: Tensor,
    tokens: Tensor,
    token_weights: Tensor | None,
    last_only: bool,
    reduction: Reduction,
) -> Weighed:
    """reference.weighed_loss, reduced, in one pass. In torch's operators it costs more than the lattice: a
    dozen passes, and every exp that underflows takes forty times as long as one that does not."""
    share, likelihood, tokens = log_share.contiguous(), log_likelihood.contiguous(), local_tensor(tokens)
    risk = log_risk.expand_as(share)
    if risk.stride(2) not in (0, 1) or risk.is_neg():
        risk = risk.resolve_neg().contiguous()
    if not risk.data_ptr():  # torch has tensors of zeros that are kept nowhere
        risk = torch.zeros_like(share)
    weights = None
    if token_weights is not None:
        weights = token_weights.detach().double().expand(share.shape[:2]).contiguous()
    result = share.new_empty(share.shape[:1] if reduction.kind == "none" else ())
    grad_share = torch.empty_like(share)
    grad_likelihood = torch.empty_like(likelihood, dtype=torch.float64)
    _native.weigh(
        log_share=share.data_ptr(),
        log_risk=risk.data_ptr(),
        risk_strides=risk.stride(),
        shape=share.shape,
        log_likelihood=likelihood.data_ptr(),
        tokens=tokens.data_ptr(),
        token_weights=0 if weights is None else weights.data_ptr(),
        last_only=last_only,
        reduction=reduction.kind,
        zero_infinity=reduction.zero_infinity,
        result=result.data_ptr(),
        grad_likelihood=grad_likelihood.data_ptr(),
        grad_share=grad_share.data_ptr(),
        is_double=share.dtype == torch.float64,
        threads=torch.get_num_threads(),
    )
    return Weighed(result, grad_share, grad_likelihood)


class Alignment(NamedTuple):
    """The best path of each utterance; -1 where there is none."""

    path: Tensor  # (N, T)
    start: Tensor  # (N, U)
    end: Tensor  # (N, U)
    score: Tensor  # (N)

    @classmethod
    def empty(cls, scores: Tensor, targets: Tensor) -> "Alignment":
        """Room for one, with scores in double."""
        frames, batch = scores.shape[:2]
        path = targets.new_empty(batch, frames, dtype=torch.int64)
        start, end = (targets.new_empty(targets.shape, dtype=torch.int64) for _ in range(2))
        return cls(path, start, end, scores.new_empty(batch, dtype=torch.float64))


@outside_graphs
def best_path(inputs: Inputs, wild: Tensor | None, price: float) -> Alignment:
    """`wild` (N, U + 1) says where anything may be said, for `price` nats a frame below the best class."""
    _check_padded(inputs.targets)
    call = _Call(inputs)
    if wild is not None:
        batch, labels = inputs.targets.shape
        if wild.dtype != torch.bool or tuple(wild.shape) != (batch, labels + 1):
            found = f"{wild.dtype} {tuple(wild.shape)}"
            raise ValueError(f"wild is {found}, expected bool (N, U + 1) = {(batch, labels + 1)}")
        wild = local_tensor(wild)
    found = Alignment.empty(inputs.scores, call.inputs.targets)
    path, start, end, score = (tensor.data_ptr() for tensor in found)
    gaps = 0 if wild is None else wild.data_ptr()
    _native.best_path(call.native, path, start, end, inputs.targets.shape[1], score, gaps, price)
    return found._replace(score=found.score.to(inputs.scores.dtype))


def _check_padded(targets: Tensor) -> None:
    if targets.dim() != 2:
        raise ValueError(f"path groups need targets of shape (N, U), got {tuple(targets.shape)}")
