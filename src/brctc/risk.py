"""Which alignment paths are preferred: the risks that weigh path groups."""

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from brctc.kernels.ctc.closed_form import PLAIN_CTC, ClosedForm, RiskKind
from brctc.kernels.ctc.groups import Event, PathGroups, Tokens


class BayesRisk(ABC):
    """A preference over path groups. Subclass it and write `log_risk`.

    tokens: "last" weighs the last token's groups alone, "each" every token's, by 1/U or `token_weights`.
    event: groups are made by where a token's prediction "end"s or "start"s.

    Two risks with the same tokens and event can be added: `EarlyEmission(8.0) + Within(first, last)`.
    """

    tokens: Tokens = "each"
    event: Event = "end"

    @abstractmethod
    def log_risk(self, groups: PathGroups) -> Tensor:
        """The logarithm of each group's risk value, broadcastable to (N, U, T).

        Larger is preferred; -inf forbids a group. Values for groups that hold no path are ignored.
        """

    def token_weights(self, groups: PathGroups) -> Tensor | None:
        """What each token counts in the loss, broadcastable to (N, U): -sum_u w_u log sum_tau r_u P_u.

        None is 1/U for each. Weights are 0 or more; what stands in the padding is ignored.
        """
        return None

    def __add__(self, other: "BayesRisk") -> "SumOfRisks":
        if not isinstance(other, BayesRisk):
            return NotImplemented
        return SumOfRisks((*_summands(self), *_summands(other)))


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

    factor: float
    tokens = "last"

    def __post_init__(self) -> None:
        _finite("factor", self.factor)

    def log_risk(self, groups: PathGroups) -> Tensor:
        return -self.factor * groups.frame / groups.input_lengths[:, None, None]


@dataclass(frozen=True)
class EarlyEmission(BayesRisk):
    """Prefers paths on which each token ends early (Eq. 11-12).

    r_u(tau) = exp(-factor * (tau - tau'_u) / T) with tau'_u the token's most probable end frame.
    For online systems: every token fires earlier, where it is in time.
    """

    factor: float
    tokens = "each"

    def __post_init__(self) -> None:
        _finite("factor", self.factor)

    def log_risk(self, groups: PathGroups) -> Tensor:
        delay = groups.frame - groups.peak_frame[:, :, None]
        return -self.factor * delay / groups.input_lengths[:, None, None]


@dataclass(frozen=True)
class DelayPenalty(BayesRisk):
    """Every token costs `factor` nats for each frame that it starts later (k2's delay penalty).

    A path counts exp(-factor * sum_u (start_u - (T - 1) / 2)) times as much, with T the utterance's own
    frames, counted from 0: a token that starts in the middle is free. This weighs whole paths, all
    tokens of each at once, and not the groups of one token: there is no `log_risk`.
    """

    factor: float

    def __post_init__(self) -> None:
        _finite("factor", self.factor)

    def log_risk(self, groups: PathGroups) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} weighs whole paths: its groups have no risk")


@dataclass(frozen=True, eq=False)
class Within(BayesRisk):
    """Each token ends (or starts) inside its window of frames; outside, every frame costs `factor` nats.

    Args:
        first, last: (N, U), the first and the last welcome frame of each token, counted from 1 as in
            `PathGroups.frame`; numbers, or anything that broadcasts, are for all tokens.
        factor: what a frame before or behind the window costs; inf, the default, forbids it.
        event: whether a token's "end" or "start" is looked at.
    """

    first: Tensor | float
    last: Tensor | float
    factor: float = math.inf
    event: Event = "end"

    def __post_init__(self) -> None:
        if self.factor != math.inf:
            _finite("factor", self.factor)
        if self.factor < 0:
            raise ValueError(f"factor must be 0 or more, got {self.factor!r}")
        if self.event not in ("end", "start"):
            raise ValueError(f'event is {self.event!r}, expected "end" or "start"')

    def log_risk(self, groups: PathGroups) -> Tensor:
        first, last = (self._frames(bound, groups) for bound in (self.first, self.last))
        outside = (first - groups.frame).clamp(min=0) + (groups.frame - last).clamp(min=0)
        return torch.where(outside > 0, -self.factor * outside, 0.0)

    @staticmethod
    def _frames(bound: Tensor | float, groups: PathGroups) -> Tensor:
        return torch.as_tensor(bound).to(groups.log_share)[..., None]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Within):
            return NotImplemented
        pairs = [(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)]
        return all(_is_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        return hash((self.factor, self.event))


def _is_equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.device == b.device and bool((a == b).all())
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b


class SumOfRisks(BayesRisk):
    """The sum of log-risks, of risks with the same tokens and event. Made by `+`."""

    def __init__(self, risks: tuple[BayesRisk, ...]) -> None:
        for risk in risks:
            if isinstance(risk, DelayPenalty):
                raise ValueError(f"{risk!r} weighs whole paths: it cannot be added to another risk")
            if isinstance(risk, nn.Module):
                name = type(risk).__name__
                raise TypeError(f"{name} is a module, whose parameters a sum would hide: add in its log_risk")
        first = risks[0]
        for risk in risks[1:]:
            if (risk.tokens, risk.event) != (first.tokens, first.event):
                a, b = (f"{r!r} (tokens {r.tokens!r}, event {r.event!r})" for r in (first, risk))
                raise ValueError(f"{a} and {b} cannot be added: tokens and event must agree")
        self.risks = risks
        self.tokens, self.event = first.tokens, first.event

    def log_risk(self, groups: PathGroups) -> Tensor:
        total = self.risks[0].log_risk(groups)
        for risk in self.risks[1:]:
            total = total + risk.log_risk(groups)
        return total

    def token_weights(self, groups: PathGroups) -> Tensor | None:
        """Those of the one that has some."""
        found = [weights for risk in self.risks if (weights := risk.token_weights(groups)) is not None]
        if len(found) > 1:
            raise ValueError(f"{len(found)} risks of {self!r} have token_weights: one can")
        return found[0] if found else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SumOfRisks) and self.risks == other.risks

    def __hash__(self) -> int:
        return hash(self.risks)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.risks))


def _summands(risk: BayesRisk) -> Iterator[BayesRisk]:
    yield from risk.risks if isinstance(risk, SumOfRisks) else (risk,)


# what torch.load(weights_only=True) makes: they hold numbers and tensors, and run nothing
torch.serialization.add_safe_globals([EarlyFinish, EarlyEmission, DelayPenalty, Within, SumOfRisks])

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
    return None if kind is None else ClosedForm(kind, float(cast("Any", risk).factor))


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


def evaluate_weights(risk: BayesRisk, groups: PathGroups) -> Tensor | None:
    """What the risk's tokens count, (N, U), in the dtype of the posteriors; None if all the same."""
    if groups.targets.shape[1] == 0:
        return None
    weights = risk.token_weights(groups)
    if weights is None:
        return None
    name = type(risk).__name__
    if risk.tokens == "last":
        raise ValueError(f'{name} has token_weights, but tokens is "last": only one is weighed')
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        found = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"{name}.token_weights must return a floating-point tensor, got {found}")
    shape = tuple(groups.targets.shape)
    try:
        return weights.to(groups.log_share).expand(shape)
    except RuntimeError:
        given = tuple(weights.shape)
        raise ValueError(
            f"{name}.token_weights returned shape {given}, not broadcastable to (N, U) = {shape}"
        ) from None


def refuse_weights(risk: BayesRisk, groups: PathGroups, weights: Tensor) -> None:
    """Raises with the first token whose weight is not a number from 0."""
    wrong = groups.token_exists & ~((weights >= 0) & (weights < math.inf))
    if wrong.any():
        n, u = wrong.nonzero()[0].tolist()
        value = weights[n, u].item()
        name = type(risk).__name__
        raise ValueError(
            f"{name}.token_weights is {value} for token {u} of utterance {n}, expected 0 or more"
        )


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
