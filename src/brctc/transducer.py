"""The transducer (RNN-T) loss: from the logits of a joint network, or from its inputs."""

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from brctc.kernels.backend import REFERENCE, Backend, BackendName, backend_of
from brctc.kernels.log_domain import unreadable_rows
from brctc.kernels.reduction import Reduction, ReductionKind, reduce_losses
from brctc.kernels.tensors import FULL, HALF_OR_FULL, Lengths, Nonfinite, check_floating, is_nan_wanted
from brctc.kernels.transducer import reference
from brctc.kernels.transducer.inputs import Labels, prepare_joint, prepare_labels


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    *,
    blank: int = 0,
    reduction: ReductionKind = "mean",
    zero_infinity: bool = False,
    clamp: float = -1,
    from_logits: bool = True,
    nonfinite: Nonfinite = "raise",
    backend: BackendName | None = None,
    validate: bool = True,
) -> Tensor:
    """The transducer loss, -log P(targets), summed over all alignments; log_softmax included.

    Args:
        logits: (N, T, U + 1, C), any float dtype; half precision is computed in float32. Row u of a
            frame is the joint network's output after u labels.
        targets: (N, U) padded, any integer dtype.
        logit_lengths: (N), frames of each utterance.
        target_lengths: (N), labels of each utterance; 0 is allowed.
        blank: index of the blank class; a negative one counts from the end.
        reduction: "none" gives (N); "sum"; "mean" divides each loss by its target length first, as
            the CTC losses do; "batchmean" is the sum over the batch size, what torchaudio and warp_rnnt call
            "mean".
        zero_infinity: an utterance whose every path has probability zero (logits of -inf) has loss 0
            instead of inf. Its gradient is zero either way.
        clamp: above 0, each utterance's gradient by its logits is kept within it, before what comes back for
            the loss multiplies it. The gradient is then made along with the loss.
        from_logits: False if `logits` are log-probabilities already. That runs on the reference, which is
            slow: leave the log_softmax to the loss.
        nonfinite: as of `bayes_risk_ctc_loss`; "nan" costs a pass over the logits.
        backend: "cpu", "triton", "reference", or None for the best that fits the tensor.
        validate: as of `bayes_risk_ctc_loss`: with False nothing waits for a GPU.
    """
    how = Reduction(reduction, zero_infinity)
    how.check()
    check_floating("logits", logits)
    if logits.dim() != 4:
        raise ValueError(f"logits must be (N, T, U + 1, C), got {tuple(logits.shape)}")
    chosen = backend_of(backend, logits) if from_logits else REFERENCE
    if not from_logits and backend not in (None, "reference"):
        raise ValueError(f"backend {backend!r} takes logits; from_logits=False needs the reference")
    if logits.dtype not in (HALF_OR_FULL if chosen.reads_half else FULL):
        logits = logits.float()
    labels = prepare_labels(targets, logit_lengths, target_lengths, blank, logits.shape)
    options = _Options(chosen, labels, from_logits, validate)
    if is_nan_wanted(nonfinite):
        losses = _marked_losses(logits, options, clamp)
    else:
        losses = _losses(logits, options, clamp)
    lengths = labels.target_lengths.to(losses.device, non_blocking=True)
    return reduce_losses(losses, lengths, how)


class _Options(NamedTuple):
    """What losses are made of, apart from the logits."""

    backend: Backend
    labels: Labels
    from_logits: bool
    validate: bool


def _losses(logits: Tensor, options: _Options, clamp: float) -> Tensor:
    """(N), with gradients that are clamped or not."""
    if clamp > 0 and torch.is_grad_enabled() and logits.requires_grad:
        return cast("Tensor", _ClampedLosses.apply(logits, options, clamp))
    backend, labels, from_logits, validate = options
    if not from_logits:
        return reference.losses(logits, labels, validate, fused=False)
    return backend.transducer.losses(logits, labels, validate)


class _ClampedLosses(torch.autograd.Function):
    """The gradient is found with the loss: what comes back is not known yet, and clamping is before it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, options: _Options, clamp: float) -> Tensor:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            losses = _losses(leaf, options, -1)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        ctx.save_for_backward(gradient.clamp_(-clamp, clamp))
        return losses.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype)[:, None, None, None], None, None


def _marked_losses(logits: Tensor, options: _Options, clamp: float) -> Tensor:
    """(N), NaN with a NaN gradient for utterances whose logits cannot be read."""
    labels = options.labels
    frames, rows = (torch.arange(size, device=logits.device) for size in logits.shape[1:3])
    used = frames[:, None] < labels.logit_lengths.to(logits.device)[:, None, None]
    used = used & (rows <= labels.target_lengths.to(logits.device)[:, None, None])
    bad = (used & unreadable_rows(logits)).flatten(1).any(1)
    losses = _losses(logits.masked_fill(bad[:, None, None, None], 0.0), options, clamp)
    unread = (used & bad[:, None, None])[..., None]
    return cast("Tensor", _Spoiled.apply(losses.masked_fill(bad, math.nan), logits, unread))


class _Spoiled(torch.autograd.Function):
    """Losses whose gradient is NaN, where they are, if anything comes back for them."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, logits: Tensor, unread: Tensor) -> Tensor:
        ctx.save_for_backward(logits, unread)
        return losses.view_as(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, unread = ctx.saved_tensors
        spoiled = unread & (grads[0] != 0)[:, None, None, None]
        return grads[0], torch.where(spoiled, math.nan, torch.zeros_like(logits)), None


def transducer_joint_loss(
    encoder: Tensor,
    prediction: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    *,
    blank: int = 0,
    reduction: ReductionKind = "mean",
    backend: BackendName | None = None,
    validate: bool = True,
) -> Tensor:
    """`transducer_loss` of the logits tanh(encoder[:, :, None] + prediction[:, None]) @ weight.T + bias.

    On the CPU these logits, (N, T, U + 1, C), are never held, nor is their gradient: rows are made a
    part at a time, those of padding not at all. With "mean" or "sum" the gradient is taken along with
    the loss; with "none" the backward pass makes the rows again.

    Args:
        encoder: (N, T, D), the encoder's output, projected to the joint network's size.
        prediction: (N, U + 1, D), the prediction network's output after 0 .. U labels, likewise.
        weight: (C, D), of the joint network's output layer.
        bias: (C), likewise.

    The others are those of `transducer_loss`.
    """
    how = Reduction(reduction)
    how.check()
    joint = prepare_joint(encoder, prediction, weight, bias)
    labels = prepare_labels(targets, logit_lengths, target_lengths, blank, joint.logits_shape())
    kernels = backend_of(backend, encoder).transducer
    if encoder.is_meta:  # has no autocast
        return kernels.joint_loss(joint, labels, how, validate)
    with torch.autocast(encoder.device.type, enabled=False):
        return kernels.joint_loss(joint, labels, how, validate)
