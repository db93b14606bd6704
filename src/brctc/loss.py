"""The criterion as torch users know it: a function and a module with CTCLoss's arguments."""

import math
import warnings

from torch import Tensor, nn

from brctc import _native
from brctc.kernels.backend import BackendName, CTCKernels, backend_of
from brctc.kernels.ctc.groups import Event, PathGroups
from brctc.kernels.ctc.inputs import Inputs, in_full_precision, pad_targets, prepare_inputs
from brctc.kernels.operators import has_values, is_traced
from brctc.kernels.reduction import Reduction, ReductionKind
from brctc.kernels.tensors import Lengths, Nonfinite, is_nan_wanted
from brctc.risk import (
    BayesRisk,
    closed_form_of,
    evaluate,
    evaluate_weights,
    refuse_value,
    refuse_weights,
)


def bayes_risk_ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    risk: BayesRisk | None = None,
    *,
    blank: int = 0,
    reduction: ReductionKind = "mean",
    zero_infinity: bool = False,
    from_logits: bool = False,
    nonfinite: Nonfinite = "raise",
    backend: BackendName | None = None,
    validate: bool = True,
) -> Tensor:
    """CTC with its alignment paths weighed by a risk; without a risk, CTC.

    Shapes, layouts and reductions are those of torch.nn.functional.ctc_loss. The gradient is the
    true derivative with respect to `log_probs` (torch's is right only behind a log_softmax).

    Args:
        log_probs: (T, N, C) or (T, C), any float dtype; half precision is computed in float32.
        targets: (N, U) padded, or all labels one after the other; any integer dtype.
        input_lengths: (N), frames of each utterance; without any, the loss is 0 if there are no labels
            either, and infinite otherwise.
        target_lengths: (N), labels of each utterance; 0 is allowed and is plain CTC.
        risk: which paths are preferred: EarlyFinish, EarlyEmission, DelayPenalty, Within, a sum of some, or
            a custom risk.
        blank: index of the blank class.
        reduction: "none" gives (N); "sum"; "mean" divides each loss by its target length first;
            "batchmean" is the sum over the batch size.
        zero_infinity: an utterance that cannot be aligned has loss 0 instead of inf. Its gradient
            is zero either way; `check_feasible` names it.
        from_logits: `log_probs` are logits; the log_softmax is fused into the loss.
        nonfinite: scores that hold NaN or +inf "raise" an error that names the frame; or, with "nan", the
            loss of their utterance and its gradient are NaN, so that a gradient scaler skips the step.
        backend: "cpu", "triton", "reference", or None for the best that fits the tensor.
        validate: raise for labels, lengths and scores that cannot be right. To raise, the host waits for
            the GPU; with False nothing waits, and such an utterance has loss NaN and no gradient (with
            nonfinite="nan", a NaN gradient). The "cpu" backend checks in any case, which costs it nothing.
    """
    how = Reduction(reduction, zero_infinity)
    _check_options(risk, how)
    inputs, batched = prepare_inputs(
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        blank,
        from_logits,
        is_nan_wanted(nonfinite),
        keep_half=True,
    )
    if not from_logits and not _Warned.unnormalised:
        _warn_of_logits(inputs.scores)
    loss = _prepared_loss(inputs, risk, how, backend, validate)
    return loss.squeeze(0) if reduction == "none" and not batched else loss


def _prepared_loss(
    inputs: Inputs, risk: BayesRisk | None, reduction: Reduction, backend: BackendName | None, validate: bool
) -> Tensor:
    chosen = backend_of(backend, inputs.scores)
    if not chosen.reads_half:
        inputs = in_full_precision(inputs)
    form = closed_form_of(risk)
    if form is not None and chosen.ctc.has_closed_form(form):
        return chosen.ctc.loss(inputs, form, reduction, validate)
    assert risk is not None  # plain CTC has a closed form everywhere
    return _custom_risk_loss(inputs, risk, chosen.ctc, reduction, validate)


class _Warned:
    """What has been said once."""

    unnormalised = False


def _warn_of_logits(scores: Tensor) -> None:
    """Says, once, that there is a log-probability above zero: they are logits, probably. Looks at one row of
    what is in the CPU's memory, which takes a part of a microsecond; a GPU is not waited for."""
    if is_traced(scores) or not (largest := _native.first_scores(scores)) > 0.01:
        return
    _Warned.unnormalised = True
    warnings.warn(
        f"log_probs are not normalised: one of the first frame is {largest:.3g}. "
        "If these are logits, pass from_logits=True",
        stacklevel=3,
    )


def _custom_risk_loss(
    inputs: Inputs, risk: BayesRisk, kernels: CTCKernels, reduction: Reduction, validate: bool
) -> Tensor:
    """By path groups: out they go, the risk of each comes back."""
    groups = group_paths(inputs, risk.event, kernels, validate)
    log_risk, weights = evaluate(risk, groups), evaluate_weights(risk, groups)
    if weights is not None and validate and has_values(weights):
        refuse_weights(risk, groups, weights)
    loss = kernels.risk_loss(inputs, groups, log_risk, risk.tokens == "last", reduction, weights)
    # where there are no values, a NaN risk shows as a NaN loss
    if validate and has_values(loss) and _is_nan(loss):
        refuse_value(risk, groups, log_risk)
    return loss


def _is_nan(loss: Tensor) -> bool:
    return math.isnan(loss.item()) if loss.dim() == 0 else bool(loss.isnan().any())


def _check_options(risk: BayesRisk | None, reduction: Reduction) -> None:
    if risk is not None and not isinstance(risk, BayesRisk):
        is_class = isinstance(risk, type) and issubclass(risk, BayesRisk)
        found = f"the class {risk.__name__} itself" if is_class else f"{risk!r}"
        raise TypeError(f"risk must be a BayesRisk or None, got {found}")
    reduction.check()


def group_paths(inputs: Inputs, event: Event, kernels: CTCKernels, validate: bool = True) -> PathGroups:
    """Path groups of prepared inputs."""
    if event not in ("end", "start"):
        raise ValueError(f'event is {event!r}, expected "end" or "start"')
    inputs = pad_targets(inputs)
    device = inputs.scores.device
    log_share, log_likelihood = kernels.path_groups(inputs, event, validate)
    return PathGroups(
        log_share,
        log_likelihood,
        inputs.targets.to(device),
        inputs.input_lengths.to(device),
        inputs.target_lengths.to(device),
        event,
    )


class BayesRiskCTCLoss(nn.Module):
    """Bayes-risk CTC as a module: a drop-in for torch.nn.CTCLoss.

    >>> criterion = BayesRiskCTCLoss(EarlyFinish(10.0))
    >>> loss = criterion(log_probs, targets, input_lengths, target_lengths)

    It is called as torch's is: `log_probs` (T, N, C) or (T, C); `targets` (N, U) padded or concatenated;
    `input_lengths` and `target_lengths` (N), tensors or lists. `criterion.risk` can be replaced between
    steps, as a `RiskSchedule` does. A risk that is an nn.Module is a part of this one, parameters and all.

    Args:
        risk: which alignment paths are preferred; None is plain CTC.
        blank: index of the blank class.
        reduction: "none", "mean", "sum" or "batchmean".
        zero_infinity: an utterance that cannot be aligned has loss 0 instead of inf.
        from_logits: the first argument is logits; the log_softmax is fused into the loss.
        nonfinite: what NaN and +inf in the scores do: "raise" an error, or make the loss "nan".
        backend: "cpu", "triton", "reference", or None for the best that fits the tensor.
        validate: raise for labels, lengths and scores that cannot be right.

    `bayes_risk_ctc_loss`, which it calls, says more of each.
    """

    def __init__(
        self,
        risk: BayesRisk | None = None,
        *,
        blank: int = 0,
        reduction: ReductionKind = "mean",
        zero_infinity: bool = False,
        from_logits: bool = False,
        nonfinite: Nonfinite = "raise",
        backend: BackendName | None = None,
        validate: bool = True,
    ) -> None:
        super().__init__()
        _check_options(risk, Reduction(reduction, zero_infinity))
        is_nan_wanted(nonfinite)
        self.risk: BayesRisk | None = risk
        self.blank = blank
        self.reduction: ReductionKind = reduction
        self.zero_infinity = zero_infinity
        self.from_logits = from_logits
        self.nonfinite: Nonfinite = nonfinite
        self.backend: BackendName | None = backend
        self.validate = validate

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths
    ) -> Tensor:
        return bayes_risk_ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            self.risk,
            blank=self.blank,
            reduction=self.reduction,
            zero_infinity=self.zero_infinity,
            from_logits=self.from_logits,
            nonfinite=self.nonfinite,
            backend=self.backend,
            validate=self.validate,
        )

    def extra_repr(self) -> str:
        # what __init__ has set, in its order
        options = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        return ", ".join(f"{name}={value!r}" for name, value in ({"risk": self.risk} | options).items())
