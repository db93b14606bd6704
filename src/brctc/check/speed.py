"""How fast the losses are beside torch's own CTC and cuDNN's: forward and backward, in turn."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from brctc.check.findings import Check, Outcome
from brctc.check.kernels import Shape
from brctc.loss import bayes_risk_ctc_loss
from brctc.risk import BayesRisk, EarlyEmission, EarlyFinish

GROUP = "speed"
CALLS = 20
RISKS: dict[str, BayesRisk | None] = {
    "vanilla": None,
    "EarlyFinish": EarlyFinish(10.0),
    "EarlyEmission": EarlyEmission(10.0),
}
Call = Callable[[], Tensor]
Batch = tuple[Tensor, tuple[Tensor, Tensor, Tensor]]
"""Logits (T, N, C); targets and both lengths."""


def make_batch(shape: Shape) -> Batch:
    """All utterances are as long as the longest."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape.T, shape.N, shape.C, generator=generator)
    targets = torch.randint(1, shape.C, (shape.N, shape.U), generator=generator)
    return logits, (targets, torch.full((shape.N,), shape.T), torch.full((shape.N,), shape.U))


def candidates(
    batch: Batch, risks: Mapping[str, BayesRisk | None], device: torch.device | str
) -> dict[str, Call]:
    """Each runs a loss and returns its gradient; "fused" is from logits."""
    logits, (targets, input_lengths, target_lengths) = batch
    logits = logits.to(device).requires_grad_()
    log_probs = logits.detach().log_softmax(-1).requires_grad_()
    rest = targets.to(device), input_lengths.to(device), target_lengths.to(device)
    # what cuDNN asks for: labels one after the other, all integers of 32 bits and on the CPU
    for_cudnn = targets.flatten().int(), input_lengths.int(), target_lengths.int()
    takes_cudnn = logits.is_cuda and torch.ops.aten._use_cudnn_ctc_loss.Tensor(log_probs, *for_cudnn, 0)

    def torchs(scores: Tensor, cudnn: bool) -> Call:
        def run() -> Tensor:
            with torch.backends.cudnn.flags(enabled=cudnn):
                given = scores.log_softmax(-1) if scores is logits else scores
                loss = F.ctc_loss(given, *(for_cudnn if cudnn else rest))
                return torch.autograd.grad(loss, scores)[0]

        return run

    def ours(scores: Tensor, risk: BayesRisk | None) -> Call:
        fused = scores is logits

        def run() -> Tensor:
            loss = bayes_risk_ctc_loss(scores, *rest, risk, from_logits=fused, validate=False)
            return torch.autograd.grad(loss, scores)[0]

        return run

    calls: dict[str, Call] = {}
    for suffix, scores in (("", log_probs), (" fused", logits)):
        calls[f"torch{suffix}"] = torchs(scores, False)
        if takes_cudnn:
            calls[f"cuDNN{suffix}"] = torchs(scores, True)
        calls |= {f"{name}{suffix}": ours(scores, risk) for name, risk in risks.items()}
    return calls


def milliseconds(call: Callable[[], object], number: int, device: torch.device) -> float:
    """Of one of so many calls in a row: on a GPU by its own clock, else of the process."""
    if device.type != "cuda":
        begin = time.process_time()
        for _ in range(number):
            call()
        return 1e3 * (time.process_time() - begin) / number
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / number


def measure(calls: Mapping[str, Call], samples: int, device: torch.device) -> dict[str, float]:
    """Median milliseconds of each, sampled in turn, so that whatever disturbs them disturbs all alike."""
    for call in calls.values():  # compiles kernels, starts allocators
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(samples):
        for name, call in calls.items():
            times[name].append(milliseconds(call, CALLS, device))
    return {name: statistics.median(found) for name, found in times.items()}


def speed_checks(device: torch.device, shapes: list[Shape], samples: int) -> Iterator[Check]:
    """A check for each shape."""
    for shape in shapes:
        yield Check(
            GROUP, "N,T,U,C = " + ",".join(map(str, shape)), partial(_compare, device, shape, samples)
        )


def _compare(device: torch.device, shape: Shape, samples: int) -> Outcome:
    ms = measure(candidates(make_batch(shape), RISKS, device), samples, device)
    ratios = {
        f"{peer} / {name}": ms[f"{peer} fused"] / ms[f"{name} fused"]
        for peer in ("torch", "cuDNN")
        if f"{peer} fused" in ms
        for name in RISKS
    }
    said = ", ".join(f"{name} {ms[f'{name} fused']:.3g} ms" for name in ("torch", *RISKS))
    times = ", ".join(f"{name}: {ratio:.1f}x" for name, ratio in ratios.items() if name.endswith("vanilla"))
    return Outcome(f"{said}; {times}", {"milliseconds": ms, "ratios": ratios})
