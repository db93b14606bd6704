"""Which alignment paths are preferred: the risks that weigh path groups."""

import math
import numbers
from dataclasses import dataclass

import torch
from torch import Tensor

from brctc.kernels.ctc.closed_form import PLAIN_CTC, ClosedForm, RiskKind
from brctc.kernels.ctc.groups import PathGroups


class BayesRisk:
    """A preference over path groups. Subclass it and write `log_risk`.

    tokens: "last" weighs the last token's groups alone, "each" every token's by 1/U.
    event: groups are made by where a token's prediction "end"s or "start"s.
    """

    tokens: str = "each"
    event: str = "end"

    def log_risk(self, groups: PathGroups) -> Tensor:
        """The logarithm of each group's risk value, broadcastable to (N, U, T).

        Larger is preferred; -inf forbids a group. Values for groups that hold no path are ignored.
        """
        raise NotImplementedError(f"{type(self).__name__} must define log_risk(groups)")


def _finite(name: str, value: float) -> None:
    if isinstance(value, Tensor):
        raise ValueError(f"{name} must be a number, got a tensor: for a learnt one write a BayesRisk")
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


@dataclass(frozen=True)
class EarlyFinish(BayesRisk):
    """Prefers paths that have emitted all tokens early (Eq. 10): r(tau) = exp(-factor * tau / T).

    For offline systems: every spike moves to the left and the rest of the encoder's output can be
    trimmed. The factor is what the whole length of an utterance costs, in nats.
    """

    risk_factor: float
    tokens = "last"

    def __post_init__(self) -> None:
        _finite("risk_factor", self.risk_factor)

    def log_risk(self, groups: PathGroups) -> Tensor:
        return -self.risk_factor * groups.frame / groups.input_lengths[:, None, None]


@dataclass(frozen=True)
class EarlyEmission(BayesRisk):
    """Prefers paths on which each token ends early (Eq. 11-12).

    r_u(tau) = exp(-factor * (tau - tau'_u) / T) with tau'_u the token's most probable end frame.
    For online systems: every token fires earlier, where it is in time.
    """

    risk_factor: float
    tokens = "each"

    def __post_init__(self) -> None:
        _finite("risk_factor", self.risk_factor)

    def log_risk(self, groups: PathGroups) -> Tensor:
        delay = groups.frame - groups.peak_frame[:, :, None]
        return -self.risk_factor * delay / groups.input_lengths[:, None, None]


@dataclass(frozen=True)
class DelayPenalty(BayesRisk):
    """Every token costs `penalty` nats for each frame that it starts later (k2's delay penalty).

    A path counts exp(-penalty * sum_u (start_u - (T - 1) / 2)) times as much, with T the utterance's own
    frames, counted from 0: a token that starts in the middle is free. This weighs whole paths, all
    tokens of each at once, and not the groups of one token: there is no `log_risk`.
    """

    penalty: float

    def __post_init__(self) -> None:
        _finite("penalty", self.penalty)

    def log_risk(self, groups: PathGroups) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} weighs whole paths: its groups have no risk")


# by exact type: a subclass may have changed log_risk
_KINDS: dict[type, RiskKind] = {
    EarlyFinish: RiskKind.EARLY_FINISH,
    EarlyEmission: RiskKind.EARLY_EMISSION,
    DelayPenalty: RiskKind.DELAY_PENALTY,
}


def closed_form_of(risk: BayesRisk | None) -> ClosedForm | None:
    """The risk as kernels know it, or None if it can only be asked about path groups."""
    if risk is None:
        return PLAIN_CTC
    kind = _KINDS.get(type(risk))
    if kind is None:
        return None
    factor = risk.penalty if isinstance(risk, DelayPenalty) else getattr(risk, "risk_factor", 0.0)
    return ClosedForm(kind, float(factor))


def evaluate(risk: BayesRisk, groups: PathGroups) -> Tensor:
    """What the risk says of the groups, broadcastable to (N, U, T), in the dtype of their posteriors."""
    name = type(risk).__name__
    if risk.tokens not in ("last", "each"):
        raise ValueError(f'{name}.tokens is {risk.tokens!r}, expected "last" or "each"')
    if groups.targets.shape[1] == 0:
        return groups.log_share  # no token in the whole batch: nothing is asked
    before = _versions(groups)
    log_risk = risk.log_risk(groups)
    if changed := [field for field, version in _versions(groups).items() if version != before[field]]:
        raise ValueError(f"{name}.log_risk has changed groups.{changed[0]} in place: make a new tensor")
    _check_shape(name, log_risk, groups)
    return log_risk.to(groups.log_share)


def _versions(groups: PathGroups) -> dict[str, int]:
    """How often each tensor has been written to; nothing where that is not known."""
    if torch.compiler.is_compiling() or groups.log_share.is_inference():
        return {}
    fields = ("log_share", "log_likelihood", "targets", "input_lengths", "target_lengths")
    tensors = {field: getattr(groups, field) for field in fields}
    return {field: tensor._version for field, tensor in tensors.items() if not tensor.is_inference()}


def _check_shape(name: str, log_risk: Tensor, groups: PathGroups) -> None:
    if not isinstance(log_risk, Tensor) or not log_risk.is_floating_point():
        found = log_risk.dtype if isinstance(log_risk, Tensor) else type(log_risk).__name__
        raise TypeError(f"{name}.log_risk must return a floating-point tensor, got {found}")
    share = groups.log_share
    on_cpu = log_risk.is_cpu and share.is_cpu  # asked first: a device costs 5 us
    if not on_cpu and log_risk.dim() and log_risk.device != share.device:
        raise ValueError(
            f"{name}.log_risk returned a tensor on {log_risk.device}, the groups are on {share.device}"
        )
    wanted, given = tuple(groups.log_share.shape), tuple(log_risk.shape)
    pairs = zip(given[::-1], wanted[::-1], strict=False)
    if len(given) > 3 or not all(a in (1, b) for a, b in pairs):
        raise ValueError(f"{name}.log_risk returned shape {given}, not broadcastable to (N, U, T) = {wanted}")


def refuse_value(risk: BayesRisk, groups: PathGroups, log_risk: Tensor) -> None:
    """Raises with the first weighed group with paths whose risk is NaN or +inf, for a loss that is NaN."""
    wrong = (groups.log_share > -math.inf) & ~(log_risk < math.inf)
    if risk.tokens == "last":
        index = torch.arange(wrong.shape[1], device=wrong.device)
        wrong &= (index == groups.target_lengths[:, None] - 1)[:, :, None]
    if not wrong.any():  # losses of both infinities add up to NaN too
        return
    n, u, t = wrong.nonzero()[0].tolist()
    value = log_risk.detach().expand_as(wrong)[n, u, t].item()
    raise ValueError(
        f"{type(risk).__name__}.log_risk is {value} for token {u} of utterance {n} at frame tau={t + 1}, "
        "expected a finite number or -inf"
    )
