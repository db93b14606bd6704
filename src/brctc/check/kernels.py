"""The kernels of the losses against the reference in float64, on the device, in loss and gradient."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from brctc.check.findings import Check, NotHereError, Outcome
from brctc.kernels.backend import BackendName, choose_backend
from brctc.kernels.ctc.groups import PathGroups
from brctc.loss import bayes_risk_ctc_loss
from brctc.risk import BayesRisk, EarlyEmission, EarlyFinish
from brctc.transducer import transducer_joint_loss, transducer_loss

GROUP = "kernels"
TOLERANCES = {torch.float64: 1e-9, torch.float32: 5e-5, torch.bfloat16: 2e-2}
"""Of the loss and of the gradient's norm, relative; float32's is the project's bar for its hardest risk."""
JOINT = 64
"""The width of a joint network."""
NAMES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Shape(NamedTuple):
    """Utterances, frames, labels, classes."""

    N: int
    T: int
    U: int
    C: int


class LateStart(BayesRisk):
    """A custom risk: it takes the way of path groups."""

    tokens, event = "each", "start"

    def log_risk(self, groups: PathGroups) -> Tensor:
        return 3.0 * groups.frame / groups.input_lengths[:, None, None]


RISKS: dict[str, BayesRisk | None] = {
    "CTC": None,
    "EarlyFinish": EarlyFinish(10.0),
    "EarlyEmission": EarlyEmission(10.0),
    "a custom risk": LateStart(),
}
Loss = Callable[[Tensor, BackendName], Tensor]
"""Of scores, by a backend: (N)."""


def kernel_checks(device: torch.device, shape: Shape) -> Iterator[Check]:
    """All losses by all backends; those that do not run here are skipped, with the reason."""
    backends: tuple[BackendName, ...] = ("triton", "cpu") if device.type == "cpu" else ("triton", "reference")
    for backend in backends:
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            if dtype == torch.bfloat16 and backend != "triton":
                continue  # the others compute it in float32
            for name in LOSSES:
                run = partial(_compare, device, shape, name, backend, dtype)
                yield Check(GROUP, f"{name}, {backend}, {NAMES[dtype]}", run)


def _compare(
    device: torch.device, shape: Shape, name: str, backend: BackendName, dtype: torch.dtype
) -> Outcome:
    try:
        choose_backend(backend, device)
    except ValueError as error:
        raise NotHereError(str(error)) from None
    scores, loss = LOSSES[name](device, shape)
    scores = scores.to(dtype)
    upstream = torch.randn(shape.N, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(
        device
    )
    found, gradient = _loss_and_gradient(loss, scores, upstream, backend)
    expected, expected_gradient = _loss_and_gradient(loss, scores.double(), upstream, "reference")
    figures = {
        "loss_error": relative_error(found, expected),
        "gradient_error": relative_error(gradient, expected_gradient),
        "tolerance": TOLERANCES[dtype],
    }
    worst = max(figures["loss_error"], figures["gradient_error"])
    said = f"loss off by {figures['loss_error']:.1e}, gradient by {figures['gradient_error']:.1e}"
    good = worst <= TOLERANCES[dtype]
    return Outcome(said if good else f"{said}, more than {TOLERANCES[dtype]:g}", figures, good)


def _loss_and_gradient(
    loss: Loss, scores: Tensor, upstream: Tensor, backend: BackendName
) -> tuple[Tensor, Tensor]:
    leaf = scores.clone().requires_grad_()
    losses = loss(leaf, backend)
    (gradient,) = torch.autograd.grad(losses, leaf, upstream.to(losses.dtype))
    return losses.detach(), gradient


def relative_error(found: Tensor, expected: Tensor) -> float:
    """In the norm; infinite if anything is not finite, for then all is lost."""
    error = ((found.double() - expected).norm() / expected.norm()).item()
    return error if math.isfinite(error) else math.inf


def _lengths(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Labels and both lengths; the first utterance is full."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(1, shape.C, (shape.N, shape.U), generator=generator)
    frames = torch.randint(max(1, 3 * shape.T // 4), shape.T + 1, (shape.N,), generator=generator)
    labels = torch.randint(max(1, shape.U // 2), shape.U + 1, (shape.N,), generator=generator)
    frames[0], labels[0] = shape.T, shape.U
    return targets.to(device), frames.to(device), labels.to(device)


def _ctc(
    device: torch.device, shape: Shape, risk: BayesRisk | None, from_logits: bool = True
) -> tuple[Tensor, Loss]:
    rest = _lengths(shape, device)
    options: dict[str, Any] = {"reduction": "none", "from_logits": from_logits}
    scores = 2 * torch.randn(shape.T, shape.N, shape.C, generator=torch.Generator().manual_seed(1))
    if not from_logits:
        scores = scores.log_softmax(-1)

    def loss(scores: Tensor, backend: BackendName) -> Tensor:
        return bayes_risk_ctc_loss(scores, *rest, risk, backend=backend, **options)

    return scores.to(device), loss


def _transducer(device: torch.device, shape: Shape) -> tuple[Tensor, Loss]:
    rest = _lengths(shape, device)
    size = shape.N, shape.T, shape.U + 1, shape.C
    logits = 2 * torch.randn(size, generator=torch.Generator().manual_seed(1)).to(device)
    return logits, lambda scores, backend: transducer_loss(scores, *rest, reduction="none", backend=backend)


def _joint(device: torch.device, shape: Shape) -> tuple[Tensor, Loss]:
    """Of the encoder's output; the prediction's, and the joint network's weights, are as they are."""
    rest = _lengths(shape, device)
    generator = torch.Generator().manual_seed(1)
    sizes = (shape.N, shape.T, JOINT), (shape.N, shape.U + 1, JOINT), (shape.C, JOINT), (shape.C,)
    encoder, *others = (torch.randn(size, generator=generator).to(device) for size in sizes)

    def loss(scores: Tensor, backend: BackendName) -> Tensor:
        prediction, weight, bias = (other.to(scores.dtype) for other in others)
        inputs = scores, prediction, weight, bias
        return transducer_joint_loss(*inputs, *rest, reduction="none", backend=backend)

    return encoder, loss


LOSSES: dict[str, Callable[[torch.device, Shape], tuple[Tensor, Loss]]] = {
    **{name: partial(_ctc, risk=risk) for name, risk in RISKS.items()},
    "CTC of log-probabilities": partial(_ctc, risk=None, from_logits=False),
    "EarlyEmission of log-probabilities": partial(_ctc, risk=RISKS["EarlyEmission"], from_logits=False),
    "transducer": _transducer,
    "transducer of a joint network": _joint,
}
