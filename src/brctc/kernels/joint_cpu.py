"""The transducer loss of a joint network whose logits (N, T, U + 1, C) are never all there.

Rows of logits are made for a part of the batch at a time, without its padding. When the loss is
reduced to one number, its gradient is known up to a factor as soon as the lattice is: it is taken in
the same pass, while the rows are at hand, and what waits for the backward pass is no larger than the
tensors that were passed in.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from brctc.kernels.cpu import _is_traced
from brctc.kernels.reduction import mean_weights
from brctc.kernels.transducer_inputs import NUMBERS_PER_CELL, Joint, Labels, native_transducer

# Numbers in the rows of a part: hidden, their gradient, logits. Small enough for the cache.
_PART_SIZE = 2**19


@torch.compiler.disable
def joint_loss(joint: Joint, labels: Labels, reduction: str) -> Tensor:
    if _is_traced(joint.encoder):
        raise RuntimeError("native code cannot be traced through here: pass backend='reference'")
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in joint)
    return _JointLoss.apply(*joint, *labels, reduction, gradient)


class _JointLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        joint, labels, (reduction, gradient) = Joint(*arguments[:4]), Labels(*arguments[4:8]), arguments[8:]
        lengths = labels.target_lengths.to("cpu", torch.float64)
        weights = mean_weights(lengths) if reduction == "mean" else torch.ones_like(lengths)
        wanted = ctx.needs_input_grad[:4] if gradient and reduction != "none" else [False] * 4
        losses, ctx.grads = _run(joint, labels, weights, wanted)
        if gradient and reduction == "none":
            ctx.save_for_backward(*arguments[:7])
            ctx.blank = labels.blank
        result = losses if reduction == "none" else torch.dot(losses, weights)
        return result.to(joint.encoder.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_output
        if grad.dim() == 0:
            grads = [None if known is None else known * grad for known in ctx.grads]
        else:
            saved = ctx.saved_tensors
            joint, labels = Joint(*saved[:4]), Labels(*saved[4:], ctx.blank)
            _, grads = _run(joint, labels, grad.double().contiguous(), ctx.needs_input_grad[:4])
        return (*grads, *[None] * 6)


def _run(
    joint: Joint, labels: Labels, weights: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses (N) in float64, and the gradients of their weighed sum as far as they are wanted."""
    native = native_transducer(labels, joint.logits_shape(), joint.encoder.dtype)
    encoder, prediction, weight, bias = (tensor.detach().contiguous() for tensor in joint)
    # matrix products like their sizes even; a class that is none has logit and gradient zero
    classes, width = weight.shape
    even = (0, 0, 0, -classes % 16)
    weight, bias = F.pad(weight, even), F.pad(bias, even[2:])
    most_rows = max(1, _PART_SIZE // (2 * width + len(weight)))
    groups = list(_groups(labels, most_rows))
    rows = max(part.rows for group in groups for part in group.parts)
    hidden, grad_hidden = (encoder.new_empty(rows, width) for _ in range(2))
    logits = encoder.new_empty(rows, len(weight))
    cells = encoder.new_empty(NUMBERS_PER_CELL * max(group.rows for group in groups))
    losses = torch.empty(len(encoder), dtype=torch.float64, device="cpu")
    grads = [torch.zeros_like(tensor) for tensor in (encoder, prediction, weight, bias)]
    grad_encoder, grad_prediction, grad_weight, grad_bias = grads

    def make_logits(part: _Part) -> None:
        native.join(
            part.first, part.last, encoder.data_ptr(), prediction.data_ptr(), width, hidden.data_ptr()
        )
        torch.addmm(bias, hidden[: part.rows], weight.t(), out=logits[: part.rows])

    def cells_of(part: _Part) -> int:
        return cells[NUMBERS_PER_CELL * part.first_row :].data_ptr()

    for group in groups:
        for part in group.parts:
            make_logits(part)
            native.read_packed(part.first, part.last, logits.data_ptr(), logits.stride(0), cells_of(part))
        native.lattice(group.first, group.last, cells.data_ptr(), losses.data_ptr(), any(wanted))
        for part in group.parts if any(wanted) else ():
            if len(group.parts) > 1:
                make_logits(part)
            native.gradient_packed(
                part.first,
                part.last,
                logits.data_ptr(),
                logits.stride(0),
                cells_of(part),
                weights.data_ptr(),
            )
            grad_logits = logits[: part.rows]
            if wanted[2] or wanted[3]:
                grad_weight.addmm_(grad_logits.t(), hidden[: part.rows])
                grad_bias += grad_logits.sum(0)
            if wanted[0] or wanted[1]:
                torch.mm(grad_logits, weight, out=grad_hidden[: part.rows])
                native.join_backward(
                    part.first,
                    part.last,
                    hidden.data_ptr(),
                    grad_hidden.data_ptr(),
                    width,
                    grad_encoder.data_ptr(),
                    grad_prediction.data_ptr(),
                )
    grads = [grad_encoder, grad_prediction, grad_weight[:classes], grad_bias[:classes]]
    return losses, [grad if is_wanted else None for grad, is_wanted in zip(grads, wanted, strict=True)]


class _Part(NamedTuple):
    """Frames of the batch, counted through without padding, and their rows of logits."""

    first: int
    last: int
    first_row: int  # in the group
    rows: int


class _Group(NamedTuple):
    """Utterances whose rows are one part together; or a long one with several parts."""

    first: int
    last: int
    rows: int
    parts: list[_Part]


def _groups(labels: Labels, most_rows: int) -> Iterator[_Group]:
    frames, width = labels.logit_lengths.tolist(), [1 + u for u in labels.target_lengths.tolist()]
    first = first_frame = 0
    while first < len(frames):
        last, last_frame, rows = first, first_frame, 0
        while last == first or (last < len(frames) and rows + frames[last] * width[last] <= most_rows):
            last_frame, rows = last_frame + frames[last], rows + frames[last] * width[last]
            last += 1
        if rows <= most_rows:
            parts = [_Part(first_frame, last_frame, 0, rows)]
        else:
            parts = _split(first_frame, last_frame, width[first], most_rows)
        yield _Group(first, last, rows, parts)
        first, first_frame = last, last_frame


def _split(first: int, last: int, width: int, most_rows: int) -> list[_Part]:
    """Frames of one utterance, with `width` rows each."""
    step = max(1, most_rows // width)
    return [
        _Part(
            frame, min(frame + step, last), (frame - first) * width, (min(frame + step, last) - frame) * width
        )
        for frame in range(first, last, step)
    ]
