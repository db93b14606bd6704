"""The transducer (RNN-T) loss: from the logits of a joint network, or from its inputs."""

import torch
from torch import Tensor

from brctc.kernels.backend import backend_of
from brctc.kernels.reduction import Reduction, reduce_losses
from brctc.kernels.tensors import FULL, HALF_OR_FULL, Lengths, check_floating
from brctc.kernels.transducer.inputs import prepare_joint, prepare_labels


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    *,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    backend: str | None = None,
    validate: bool = True,
) -> Tensor:
    """The transducer loss, -log P(targets), summed over all alignments; log_softmax included.

    Args:
        logits: (N, T, U + 1, C), any float dtype; half precision is computed in float32. Row u of a
            frame is the joint network's output after u labels.
        targets: (N, U) padded, any integer dtype.
        logit_lengths: (N), frames of each utterance.
        target_lengths: (N), labels of each utterance; 0 is allowed.
        blank: index of the blank class.
        reduction: "none" gives (N); "sum"; "mean" divides each loss by its target length first, as
            the CTC losses do.
        zero_infinity: an utterance whose every path has probability zero (logits of -inf) has loss 0
            instead of inf. Its gradient is zero either way.
        backend: "cpu", "triton", "reference", or None for the best that fits the tensor.
        validate: as of `bayes_risk_ctc_loss`: with False nothing waits for a GPU.
    """
    how = Reduction(reduction, zero_infinity)
    how.check()
    check_floating("logits", logits)
    if logits.dim() != 4:
        raise ValueError(f"logits must be (N, T, U + 1, C), got {tuple(logits.shape)}")
    chosen = backend_of(backend, logits)
    if logits.dtype not in (HALF_OR_FULL if chosen.reads_half else FULL):
        logits = logits.float()
    labels = prepare_labels(targets, logit_lengths, target_lengths, blank, logits.shape)
    losses = chosen.transducer.losses(logits, labels, validate)
    lengths = labels.target_lengths.to(losses.device, non_blocking=True)
    return reduce_losses(losses, lengths, how)


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
    reduction: str = "mean",
    backend: str | None = None,
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
