"""Where the time of training goes."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from brctc.data import Batch
from brctc.models import Objective, System
from brctc.models.system import ctc_loss
from brctc.trim import trim

REPEATS = 3


def step_shares(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Of the steps' time, the shares of data (waiting for it), forward, backward and optimiser.

    `records` are lines of `read_metrics`; those that are not of steps are ignored.
    """
    totals: dict[str, float] = {}
    for record in records:
        for name, seconds in record.get("seconds", {}).items():
            totals[name] = totals.get(name, 0.0) + seconds
    everything = sum(totals.values())
    return {name: seconds / everything for name, seconds in totals.items()}


def loss_seconds(system: System, batch: Batch, objective: Objective) -> dict[str, float]:
    """Medians for one batch: "ctc" (both CTC losses with their gradients), "trim", and "step", the
    forward and backward pass of the whole system, these included."""
    targets = (batch.targets, batch.target_lengths)
    with torch.no_grad():
        whole = system.encode(batch.features, batch.lengths)
        encoded = system.encode(batch.features, batch.lengths, objective.trim)
    weights = objective.weights(system.config)
    outputs = []
    if "inter_ctc" in weights:
        outputs.append((encoded.inter_logits, encoded.inter_lengths, objective.inter_risk))
    if "ctc" in weights:
        outputs.append((encoded.logits, encoded.lengths, objective.final_risk))

    def losses() -> None:
        for logits, lengths, risk in outputs:
            ctc_loss(logits.detach().requires_grad_(), lengths, *targets, risk).backward()

    def trimming() -> None:
        if objective.trim is not None:
            rule = objective.trim
            trim(
                whole.hidden,
                whole.lengths,
                whole.inter_logits,
                threshold=rule.threshold,
                margin=rule.margin,
                from_logits=True,
            )

    def step() -> None:
        loss = system(batch, objective)["loss"]
        torch.autograd.grad(loss, list(system.parameters()), allow_unused=True)

    return {name: _median(work) for name, work in (("ctc", losses), ("trim", trimming), ("step", step))}


def _median(work: Callable[[], None]) -> float:
    work()  # warm
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
