"""The CTC criteria by Triton kernels, for CUDA and ROCm tensors.

Loss and occupancies, which are small, are found in the forward pass; the backward pass makes the
gradient from them and the scores. Nothing waits for the device but the checks of the input's values,
and these only if they are asked for. Triton itself is imported when a kernel is first run.
"""

import torch
from torch import Tensor

from brctc.kernels.ctc import reference, triton_operators
from brctc.kernels.ctc.closed_form import ClosedForm, RiskKind
from brctc.kernels.ctc.groups import Event
from brctc.kernels.ctc.inputs import Inputs, in_full_precision, pad_targets
from brctc.kernels.reduction import Reduction, reduce_losses

risk_loss = reference.risk_loss


def has_closed_form(form: ClosedForm) -> bool:
    return True


def loss(inputs: Inputs, form: ClosedForm, reduction: Reduction, validate: bool) -> Tensor:
    """A delay penalty, which is there to be compared with, has no kernels of its own."""
    if form.kind is RiskKind.DELAY_PENALTY:
        return reference.loss(in_full_precision(inputs), form, reduction, validate)
    inputs = pad_targets(inputs)
    gradient = torch.is_grad_enabled() and inputs.scores.requires_grad
    losses, *_ = triton_operators.loss(*inputs, form.kind.value, form.factor, gradient, validate)
    lengths = inputs.target_lengths.to(losses.device, non_blocking=True)
    return reduce_losses(losses, lengths, reduction)


def path_groups(inputs: Inputs, event: Event, validate: bool) -> tuple[Tensor, Tensor]:
    return triton_operators.path_groups(*inputs, event == "start", validate)
