"""The transducer loss of a joint network whose logits (N, T, U + 1, C) are never all there.

Rows of logits are made for a part of the batch at a time, without its padding. When the loss is
reduced to one number, its gradient is known up to a factor as soon as the lattice is: it is taken in
the same pass, while the rows are at hand, and what waits for the backward pass is no larger than the
tensors that were passed in.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from brctc import _native
from brctc.kernels.operators import (
    builds_graph,
    needs_operators,
    no_second_derivative,
    outside_graphs,
    register,
    wants_operator,
)
from brctc.kernels.reduction import Reduction, ReductionKind, loss_weights, reduce_losses
from brctc.kernels.tensors import FULL
from brctc.kernels.transducer.inputs import (
    NUMBERS_PER_CELL,
    Joint,
    Labels,
    check_joint,
    check_labels,
    native_transducer,
)

# Numbers in the rows of a group, which stay until its lattice is known: 32 MB in float32.
_GROUP_SIZE = 2**23
# Numbers in the rows of a part, which are worked on together: about what a cache holds. But matrix
# products of fewer rows than this are slow.
_PART_SIZE = 2**19
_LEAST_ROWS = 512


def joint_loss(joint: Joint, labels: Labels, reduction: Reduction, validate: bool) -> Tensor:
    """The reduced loss."""
    if any(needs_operators(tensor) for tensor in joint):
        losses = joint_losses(*joint, *labels)
        return reduce_losses(losses, labels.target_lengths, reduction)
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in joint)
    return _JointLoss.apply(*joint, labels, reduction.kind, gradient)


class _JointLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        encoder: Tensor,
        prediction: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Labels,
        reduction: ReductionKind,
        gradient: bool,
    ) -> Tensor:
        joint = Joint(encoder, prediction, weight, bias)
        targets, logit_lengths, target_lengths, ctx.blank = labels
        lengths = target_lengths.to("cpu", torch.float64)
        ctx.weights = loss_weights(reduction, lengths)
        wanted = ctx.needs_input_grad[:4] if gradient and reduction != "none" else [False] * 4
        losses, grads = _run(joint, labels, ctx.weights, wanted)
        ctx.save_for_backward(*joint, targets, logit_lengths, target_lengths, *grads)
        result = losses if reduction == "none" else torch.dot(losses, ctx.weights)
        return result.to(encoder.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        encoder, prediction, weight, bias, targets, logit_lengths, target_lengths, *known = ctx.saved_tensors
        joint = Joint(encoder, prediction, weight, bias)
        labels = Labels(targets, logit_lengths, target_lengths, ctx.blank)
        if grad.dim() == 0 and not builds_graph():
            found = [None if gradient is None else gradient * grad for gradient in known]
        elif wants_operator(grad):
            found = joint_losses_backward(grad * ctx.weights, *joint, *labels)
        else:
            weights = grad.double().contiguous()
            found = _run(joint, labels, weights, ctx.needs_input_grad[:4])[1]
        return (*found, *[None] * 3)


@outside_graphs
def _run(
    joint: Joint, labels: Labels, weights: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    return _Pass(joint, labels, weights, wanted).run()


class _Part(NamedTuple):
    """Frames of a batch, counted through without padding, and their rows of logits."""

    first: int
    last: int
    cell: int  # the first row's place among those of its group
    row: int  # its place in working memory: the same, or 0 if the group is too large for that
    rows: int


class _Group(NamedTuple):
    """Utterances that are done together."""

    first: int
    last: int
    rows: int
    parts: list[_Part]

    @property
    def is_kept(self) -> bool:
        """Whether the working memory holds all parts at once."""
        return self.parts[-1].cell == self.parts[-1].row


def _groups(native: _native.Transducer, batch: int, numbers_per_row: int) -> list[_Group]:
    most = max(1, _GROUP_SIZE // numbers_per_row)
    most_of_part = min(most, max(_LEAST_ROWS, _PART_SIZE // numbers_per_row))
    start = [native.first_frame(n) for n in range(batch + 1)]
    row = [native.rows_before(frame) for frame in start]
    groups, first = [], 0
    while first < batch:
        last = first + 1
        while last < batch and row[last + 1] - row[first] <= most:
            last += 1
        kept = row[last] - row[first] <= most
        parts, frame = [], start[first]
        while frame < start[last]:
            end = min(native.end_of_part(frame, most_of_part), start[last])
            cell, rows = native.rows_before(frame) - row[first], native.rows_before(end)
            parts.append(_Part(frame, end, cell, cell if kept else 0, rows - row[first] - cell))
            frame = end
        groups.append(_Group(first, last, row[last] - row[first], parts))
        first = last
    return groups


class _Pass:
    """One way through a batch: losses, and the gradients of their weighed sum as far as wanted."""

    def __init__(self, joint: Joint, labels: Labels, weights: Tensor, wanted: Sequence[bool]) -> None:
        self.native = native_transducer(labels, joint.logits_shape(), joint.encoder.dtype)
        self.weights, self.wanted = weights, wanted
        self.encoder, self.prediction, weight, bias = (
            tensor.detach().resolve_neg().contiguous() for tensor in joint
        )
        self.classes, self.width = weight.shape
        # matrix products like even sizes; a class that is none has logit and gradient zero
        more = -self.classes % 16
        self.weight, self.bias = F.pad(weight, (0, 0, 0, more)), F.pad(bias, (0, more))
        self.groups = _groups(self.native, len(self.encoder), self.width + len(self.weight))
        parts = [part for group in self.groups for part in group.parts]
        rows, rows_of_part = max(part.row + part.rows for part in parts), max(part.rows for part in parts)
        new_empty = self.encoder.new_empty
        self.hidden, self.logits = new_empty(rows, self.width), new_empty(rows, len(self.weight))
        self.cells = new_empty(max(group.rows for group in self.groups), NUMBERS_PER_CELL)
        self.losses = torch.empty(len(self.encoder), dtype=torch.float64, device="cpu")
        if any(wanted):
            self.grad_hidden = new_empty(rows_of_part, self.width)
            self.grad_encoder, self.grad_prediction, self.grad_weight, self.grad_bias = (
                torch.zeros_like(tensor) for tensor in (self.encoder, self.prediction, self.weight, self.bias)
            )

    def run(self) -> tuple[Tensor, list[Tensor | None]]:
        """Losses (N) in float64, and the gradients of the joint network's tensors."""
        for group in self.groups:
            for part in group.parts:
                self._make_logits(part)
                self.native.read_packed(part.first, part.last, *self._rows(part))
            cells, losses = self.cells.data_ptr(), self.losses.data_ptr()
            self.native.lattice(group.first, group.last, cells, losses, any(self.wanted))
            if any(self.wanted):
                for part in group.parts:
                    if not group.is_kept:
                        self._make_logits(part)
                    self._backward(part)
        if not any(self.wanted):
            return self.losses, [None] * 4
        grads = [
            self.grad_encoder,
            self.grad_prediction,
            self.grad_weight[: self.classes],
            self.grad_bias[: self.classes],
        ]
        return self.losses, [
            grad if is_wanted else None for grad, is_wanted in zip(grads, self.wanted, strict=True)
        ]

    def _rows(self, part: _Part) -> tuple[int, int, int]:
        """Logits, their stride and cells as the native core takes them."""
        logits = self.logits[part.row :]
        return logits.data_ptr(), logits.stride(0), self.cells[part.cell :].data_ptr()

    def _make_logits(self, part: _Part) -> None:
        hidden, logits = (rows[part.row : part.row + part.rows] for rows in (self.hidden, self.logits))
        inputs = self.encoder.data_ptr(), self.prediction.data_ptr()
        self.native.join(part.first, part.last, *inputs, self.width, hidden.data_ptr())
        torch.addmm(self.bias, hidden, self.weight.t(), out=logits)

    def _backward(self, part: _Part) -> None:
        hidden, logits = (rows[part.row : part.row + part.rows] for rows in (self.hidden, self.logits))
        self.native.gradient_packed(part.first, part.last, *self._rows(part), self.weights.data_ptr())
        if self.wanted[2] or self.wanted[3]:
            self.grad_weight.addmm_(logits.t(), hidden)
            self.grad_bias += logits.sum(0)
        if self.wanted[0] or self.wanted[1]:
            grad_hidden = torch.mm(logits, self.weight, out=self.grad_hidden[: part.rows])
            inputs = hidden.data_ptr(), grad_hidden.data_ptr()
            outputs = self.grad_encoder.data_ptr(), self.grad_prediction.data_ptr()
            self.native.join_backward(part.first, part.last, *inputs, self.width, *outputs)


# ---- operators: what a tracer sees -------------------------------------------------------------


def _transducer_joint_loss(*arguments: Any) -> Tensor:
    joint, labels = _checked(arguments)
    ones = torch.ones(len(joint.encoder), dtype=torch.float64, device="cpu")
    return _run(joint, labels, ones, [False] * 4)[0].to(joint.encoder.dtype)


def _transducer_joint_loss_backward(grad_losses: Tensor, *arguments: Any) -> list[Tensor | None]:
    joint, labels = _checked(arguments)
    if grad_losses.shape != joint.encoder.shape[:1] or not grad_losses.is_floating_point():
        found = f"{grad_losses.dtype} {tuple(grad_losses.shape)}"
        raise ValueError(f"grad_losses is {found}, expected {len(joint.encoder)} floating-point values")
    return _run(joint, labels, grad_losses.detach().double().contiguous(), [True] * 4)[1]


def _checked(arguments: tuple[Any, ...]) -> tuple[Joint, Labels]:
    """Anyone can call an operator: shapes and dtypes must fit."""
    joint, labels = Joint(*arguments[:4]), Labels(*arguments[4:])
    check_joint(joint)
    for name, tensor in joint._asdict().items():
        if tensor.dtype != joint.encoder.dtype or tensor.dtype not in FULL:
            raise TypeError(f"{name} is {tensor.dtype}, expected float32 or float64 like the encoder")
    check_labels(labels, joint.logits_shape())
    return joint, labels


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.blank = inputs[7]


def _joint_backward(ctx: Any, grad_losses: Tensor) -> tuple[Tensor | None, ...]:
    found = joint_losses_backward(grad_losses, *ctx.saved_tensors, ctx.blank)
    return (*found, *[None] * 4)


_INPUTS = (
    "Tensor encoder, Tensor prediction, Tensor weight, Tensor bias, "
    "Tensor targets, Tensor logit_lengths, Tensor target_lengths, SymInt blank"
)
joint_losses = register(
    f"transducer_joint_loss({_INPUTS}) -> Tensor",
    _transducer_joint_loss,
    lambda encoder, *_: encoder.new_empty(encoder.shape[0]),
    _joint_backward,
    _setup,
)
joint_losses_backward = register(
    f"transducer_joint_loss_backward(Tensor grad_losses, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _transducer_joint_loss_backward,
    lambda grad_losses, *inputs: tuple(tensor.new_empty(tensor.shape) for tensor in inputs[:4]),
    no_second_derivative,
)
