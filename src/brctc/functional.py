"""The losses under their names in torch and torchaudio, with the same arguments in the same order."""

from typing import Literal

from torch import Tensor

from brctc.kernels.backend import BackendName
from brctc.kernels.reduction import ReductionKind
from brctc.kernels.tensors import Lengths, Nonfinite
from brctc.loss import bayes_risk_ctc_loss
from brctc.risk import BayesRisk
from brctc.transducer import transducer_loss


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: ReductionKind = "mean",
    zero_infinity: bool = False,
    *,
    risk: BayesRisk | None = None,
    from_logits: bool = False,
    nonfinite: Nonfinite = "raise",
    backend: BackendName | None = None,
    validate: bool = True,
) -> Tensor:
    """torch.nn.functional.ctc_loss, with a risk if there is one: see `brctc.bayes_risk_ctc_loss`."""
    return bayes_risk_ctc_loss(
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        risk,
        blank=blank,
        reduction=reduction,
        zero_infinity=zero_infinity,
        from_logits=from_logits,
        nonfinite=nonfinite,
        backend=backend,
        validate=validate,
    )


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = -1,
    clamp: float = -1,
    reduction: Literal["none", "mean", "sum"] = "mean",
    fused_log_softmax: bool = True,
    *,
    nonfinite: Nonfinite = "raise",
    backend: BackendName | None = None,
    validate: bool = True,
) -> Tensor:
    """torchaudio.functional.rnnt_loss: "mean" is the mean over the batch. See `brctc.transducer_loss`."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f'reduction is {reduction!r}, expected "none", "mean" or "sum"')
    return transducer_loss(
        logits,
        targets,
        logit_lengths,
        target_lengths,
        blank=blank,
        reduction="batchmean" if reduction == "mean" else reduction,
        clamp=clamp,
        from_logits=fused_log_softmax,
        nonfinite=nonfinite,
        backend=backend,
        validate=validate,
    )
