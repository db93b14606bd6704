"""The criterion as torch users know it: a function and a module with CTCLoss's arguments."""

import math

from torch import Tensor, nn

from brctc.kernels.backend import CTCKernels, backend_of
from brctc.kernels.ctc.groups import PathGroups
from brctc.kernels.ctc.inputs import Inputs, in_full_precision, pad_targets, prepare_inputs
from brctc.kernels.operators import has_values
from brctc.kernels.reduction import Reduction
from brctc.kernels.tensors import Lengths
from brctc.risk import BayesRisk, closed_form_of, evaluate, refuse_value


def bayes_risk_ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    risk: BayesRisk | None = None,
    *,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    from_logits: bool = False,
    backend: str | None = None,
    validate: bool = True,
) -> Tensor:
    """CTC with its alignment paths weighed by a risk; without a risk, CTC.

    Shapes, layouts and reductions are those of torch.nn.functional.ctc_loss. The gradient is the
    true derivative with respect to `log_probs` (torch's is right only behind a log_softmax).

    Args:
        log_probs: (T, N, C) or (T, C), any float dtype; half precision is computed in float32.
        targets: (N, U) padded, or all labels one after the other; any integer dtype.
        input_lengths: (N), frames of each utterance; 1 or more, where torch takes 0.
        target_lengths: (N), labels of each utterance; 0 is allowed and is plain CTC.
        risk: which paths are preferred: EarlyFinish, EarlyEmission, DelayPenalty or a custom risk.
        blank: index of the blank class.
        reduction: "none" gives (N); "sum"; "mean" divides each loss by its target length first.
        zero_infinity: an utterance that cannot be aligned has loss 0 instead of inf. Its gradient
            is zero either way; `check_feasible` names it.
        from_logits: `log_probs` are logits; the log_softmax is fused into the loss.
        backend: "cpu", "triton", "reference", or None for the best that fits the tensor.
        validate: raise for labels, lengths and scores that cannot be right. To raise, the host waits for
            the GPU; with False nothing waits, and such an utterance has loss NaN and no gradient. The
            "cpu" backend checks in any case, which costs it nothing.
    """
    how = Reduction(reduction, zero_infinity)
    _check_options(risk, how)
    inputs, batched = prepare_inputs(
        log_probs, targets, input_lengths, target_lengths, blank, from_logits, keep_half=True
    )
    chosen = backend_of(backend, inputs.scores)
    if not chosen.reads_half:
        inputs = in_full_precision(inputs)
    form = closed_form_of(risk)
    if form is not None and chosen.ctc.has_closed_form(form):
        loss = chosen.ctc.loss(inputs, form, how, validate)
    else:
        assert risk is not None  # plain CTC has a closed form everywhere
        loss = _custom_risk_loss(inputs, risk, chosen.ctc, how, validate)
    return loss.squeeze(0) if reduction == "none" and not batched else loss


def _custom_risk_loss(
    inputs: Inputs, risk: BayesRisk, kernels: CTCKernels, reduction: Reduction, validate: bool
) -> Tensor:
    """By path groups: out they go, the risk of each comes back."""
    groups = group_paths(inputs, risk.event, kernels, validate)
    log_risk = evaluate(risk, groups)
    loss = kernels.risk_loss(inputs, groups, log_risk, risk.tokens == "last", reduction)
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


def group_paths(inputs: Inputs, event: str, kernels: CTCKernels, validate: bool = True) -> PathGroups:
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
    """`bayes_risk_ctc_loss` as a module: a drop-in for torch.nn.CTCLoss.

    >>> criterion = BayesRiskCTCLoss(EarlyFinish(10.0))
    >>> loss = criterion(log_probs, targets, input_lengths, target_lengths)
    """

    def __init__(
        self,
        risk: BayesRisk | None = None,
        *,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        from_logits: bool = False,
        backend: str | None = None,
        validate: bool = True,
    ) -> None:
        super().__init__()
        _check_options(risk, Reduction(reduction, zero_infinity))
        self.risk = risk
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity
        self.from_logits = from_logits
        self.backend = backend
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
            backend=self.backend,
            validate=self.validate,
        )

    def extra_repr(self) -> str:
        options = ("risk", "blank", "reduction", "zero_infinity", "from_logits", "backend", "validate")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in options)
