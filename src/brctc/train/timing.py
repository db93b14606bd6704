"""Where the time of training goes."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from brctc.data.batch import Batch, Padded
from brctc.train.losses import CTCConfig, ctc_loss
from brctc.train.objective import TOTAL, Objective

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


def loss_seconds(objective: Objective, batch: Batch, step: int) -> dict[str, float]:
    """Medians for one batch: "ctc" (all CTC losses with their gradients), "trim", and "step", the
    forward and backward pass of the whole system, these included."""
    system, trim = objective.system, objective.trim
    with torch.no_grad():
        whole = system.encode(batch.source)
        encoded = system.encode(batch.source, trim)
    ctcs = [config for config in objective.configs.values() if isinstance(config, CTCConfig)]
    outputs = [(encoded.logits(ctc.on, ctc.text), ctc) for ctc in ctcs]

    def losses() -> None:
        for (logits, lengths), ctc in outputs:
            scores = Padded(logits.detach().requires_grad_(), lengths)
            ctc_loss(scores, batch.targets[ctc.text], ctc.risk.at(step)).backward()

    def trimming() -> None:
        tap = system.config.encoder.trims_at
        if trim is not None and tap is not None:
            whole.kept_lengths(tap, trim)

    def whole_step() -> None:
        loss = objective(batch, step)[TOTAL]
        torch.autograd.grad(loss, list(objective.parameters()), allow_unused=True)

    return {name: _median(work) for name, work in (("ctc", losses), ("trim", trimming), ("step", whole_step))}


def _median(work: Callable[[], None]) -> float:
    work()  # warm
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
