"""The native core as operators of torch: schema, fake kernel and autograd of each, for whoever traces."""

from typing import Any

import torch
from torch import Tensor

from brctc.kernels.ctc import cpu_native
from brctc.kernels.ctc.closed_form import checked_form
from brctc.kernels.ctc.cpu_native import Alignment
from brctc.kernels.ctc.inputs import Inputs
from brctc.kernels.operators import no_second_derivative, register
from brctc.kernels.reduction import Reduction

_INPUTS = (
    "Tensor scores, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "SymInt blank, bool from_logits, bool nan"
)
_INPUT_COUNT = len(Inputs._fields)


def _fake_gradient(scores: Tensor) -> Tensor:
    """In the layout of the scores: batch-major if they are."""
    laid_out = scores if scores.stride(2) == 1 else scores.contiguous()
    frames, batch, classes = scores.shape
    if laid_out.stride(1) > laid_out.stride(0):
        return scores.new_empty(batch, frames, classes).transpose(0, 1)
    return scores.new_empty(frames, batch, classes)


# ---- the loss of a closed form --------------------------------------------------------------


def _loss_and_gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Losses (N) and the gradient of each with respect to the scores, empty if it is not wanted."""
    inputs, (risk, factor, gradient) = Inputs(*arguments[:_INPUT_COUNT]), arguments[_INPUT_COUNT:]
    losses, dense = cpu_native.loss(inputs, checked_form(risk, factor), Reduction("none"), gradient)
    return losses, inputs.scores.new_empty(0) if dense is None else dense


def _fake_loss(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    gradient = arguments[-1]
    return scores.new_empty(scores.shape[1]), _fake_gradient(scores) if gradient else scores.new_empty(0)


def _setup_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, gradient = output
    ctx.save_for_backward(inputs[0], gradient)
    ctx.mark_non_differentiable(gradient)
    ctx.has_gradient = inputs[-1]


def _loss_backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if not ctx.has_gradient:
        raise RuntimeError(
            "brctc::loss_and_gradient was called with gradient=False and cannot be differentiated"
        )
    return (weigh_gradient(grad_loss, *ctx.saved_tensors), *[None] * 9)


def _weigh_gradient(grad_loss: Tensor, scores: Tensor, gradient: Tensor) -> Tensor:
    """The scores are there for autograd to see: the gradient depends on them, without a derivative."""
    if grad_loss.shape != scores.shape[1:2] or not grad_loss.is_floating_point():
        found = f"{grad_loss.dtype} {tuple(grad_loss.shape)}"
        raise ValueError(f"grad_loss is {found}, expected {scores.shape[1]} floating-point values")
    if gradient.shape != scores.shape or gradient.dtype != scores.dtype:
        found = f"{gradient.dtype} {tuple(gradient.shape)}"
        raise ValueError(f"gradient is {found}, expected {scores.dtype} {tuple(scores.shape)}")
    weighed = gradient * where_possible(grad_loss, gradient).to(gradient.dtype)[:, None]
    return weighed if grad_loss.all() else weighed.masked_fill((grad_loss == 0)[:, None], 0.0)


def where_possible(grad_loss: Tensor, gradient: Tensor) -> Tensor:
    """What comes back for each loss. That of an utterance without a path is often infinite, and times its
    gradient, which is zero, would be NaN."""
    if grad_loss.isfinite().all():
        return grad_loss
    return grad_loss.masked_fill((gradient == 0).all(-1).all(0), 0.0)


loss_and_gradient = register(
    f"loss_and_gradient({_INPUTS}, int risk, float factor, bool gradient) -> (Tensor, Tensor)",
    _loss_and_gradient,
    _fake_loss,
    _loss_backward,
    _setup_loss,
)
weigh_gradient = register(
    "weigh_gradient(Tensor grad_loss, Tensor scores, Tensor gradient) -> Tensor",
    _weigh_gradient,
    lambda grad_loss, scores, gradient: torch.empty_like(gradient),
    no_second_derivative,
)


# ---- path groups ----------------------------------------------------------------------------


def _path_groups(*arguments: Any) -> tuple[Tensor, Tensor]:
    *inputs, at_start = arguments
    return cpu_native.path_groups(Inputs(*inputs), at_start)


def _path_groups_backward(grad_share: Tensor, grad_likelihood: Tensor, *arguments: Any) -> Tensor:
    *inputs, at_start = arguments
    return cpu_native.path_groups_backward(grad_share, grad_likelihood, Inputs(*inputs), at_start)


def _fake_groups(scores: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    frames, batch = scores.shape[:2]
    return scores.new_empty(batch, targets.shape[1], frames), scores.new_empty(batch)


def _setup_groups(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.others = inputs[4:]


def _groups_backward(ctx: Any, grad_share: Tensor, grad_likelihood: Tensor) -> tuple[Tensor | None, ...]:
    dense = path_groups_backward(grad_share, grad_likelihood, *ctx.saved_tensors, *ctx.others)
    return (dense, *[None] * 7)


path_groups = register(
    f"path_groups({_INPUTS}, bool at_start) -> (Tensor, Tensor)",
    _path_groups,
    _fake_groups,
    _groups_backward,
    _setup_groups,
)
path_groups_backward = register(
    f"path_groups_backward(Tensor grad_share, Tensor grad_likelihood, {_INPUTS}, bool at_start) -> Tensor",
    _path_groups_backward,
    lambda grad_share, grad_likelihood, scores, *_: _fake_gradient(scores),
    no_second_derivative,
)


# ---- the best path --------------------------------------------------------------------------


def _fake_best_path(scores: Tensor, targets: Tensor, *_: Any) -> Alignment:
    found = Alignment.empty(scores, targets)
    return found._replace(score=found.score.to(scores.dtype))


best_path = register(
    f"best_path({_INPUTS}, Tensor? wild, float price) -> (Tensor, Tensor, Tensor, Tensor)",
    lambda *arguments: cpu_native.best_path(Inputs(*arguments[:_INPUT_COUNT]), *arguments[_INPUT_COUNT:]),
    _fake_best_path,
)
