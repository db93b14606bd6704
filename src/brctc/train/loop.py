"""The training loop: one for all systems, corpora and numbers of processes.

Every random choice of a step is a function of the recipe's seed, the stage, the step and the part of the
batch, so a run that continues from a checkpoint does exactly what it would have done.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from brctc.data.batch import Batch
from brctc.data.loading import (
    BatchLoader,
    Parts,
    cut_id,
    load_ahead,
    naming_dead_workers,
    num_frames,
    split_batch,
)
from brctc.data.sampling import PlannedBatch, Position, derive_seed
from brctc.files import write_json
from brctc.train.checkpoint import (
    Checkpoint,
    checkpoint_path,
    load_optimiser,
    optimiser_tensors,
    prune_checkpoints,
    save_checkpoint,
)
from brctc.train.corpus import batches_of_stage
from brctc.train.engine import Parallel
from brctc.train.factors import factor_at
from brctc.train.objective import TOTAL, Objective
from brctc.train.run_context import Moment, Run
from brctc.train.schedule import learning_rate
from brctc.train.signals import Interrupted, NonFiniteError
from brctc.train.snapshot import write_snapshot
from brctc.train.timing import loss_seconds
from brctc.train.validation import validate


@dataclass
class Seconds:
    """Where a step's time goes."""

    data: float = 0.0
    """Waiting for the batch."""
    forward: float = 0.0
    """Through the system and its losses."""
    backward: float = 0.0
    """With gradients summed over processes meanwhile."""
    optimiser: float = 0.0
    """Clipping, Adam."""


class StageLoop:
    """The steps of one stage."""

    def __init__(
        self, run: Run, objective: Objective, moment: Moment, optimiser_state: dict[str, Tensor] | None = None
    ) -> None:
        self.run, self.objective, self.moment = run, objective, moment
        self.recipe = run.recipe
        self.name, self.stage = list(run.recipe.stages.items())[moment.stage]
        self.settings = run.recipe.optimiser_of(self.stage)
        named = [(name, p) for name, p in objective.named_parameters() if p.requires_grad]
        self.parameter_names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.parallel = Parallel(objective, run.processes)
        self.optimiser = torch.optim.Adam(self.parameters, betas=self.settings.betas, fused=True)
        if optimiser_state is not None:
            load_optimiser(self.optimiser, self.parameter_names, optimiser_state)
        self.stream = batches_of_stage(run.recipe, moment.stage, run.train, run.tokenizers)
        self.total = self.stage.steps or self.stream.steps_of(self.stage.epochs or 0)
        count = run.processes.count
        self.num_parts = math.ceil(self.settings.accumulate / count) * count

    def __call__(self) -> Moment:
        """Runs the stage to its end."""
        with naming_dead_workers():
            return self._run()

    def _run(self) -> Moment:
        run = self.run
        run.journal.begin(self.name, self.moment.position.step, self.total)
        pin = run.processes.device.type == "cuda"
        batches = load_ahead(self._planned(), self._loading(), self.recipe.workers, pin_memory=pin)
        try:
            while not self.moment.finished:
                self._snapshot()
                started = time.perf_counter()
                planned, parts = next(batches)
                stop = self._step(planned, parts, Seconds(data=time.perf_counter() - started))
                regular = self._is_regular(planned.after)
                self.moment = replace(
                    self.moment,
                    position=planned.after,
                    done=self.moment.done + 1,
                    seconds=self.moment.seconds + time.perf_counter() - started,
                    finished=self._is_last(planned.after),
                )
                if self.moment.finished:
                    self._look_back(parts)
                if regular or self.moment.finished:
                    # saved last: what a killed run has not written, it does again
                    self._save(regular=True, dev=self._validate())
                elif stop:
                    self._save(regular=False)
                if stop:
                    run.processes.wait()  # torchrun kills all as soon as one has ended
                    raise Interrupted(
                        f"stopped by a signal after step {self.moment.position.step} of stage "
                        f"{self.name!r}; a checkpoint is written, resume continues from it"
                    )
        finally:
            batches.close()
        return self.moment

    def _step(self, planned: PlannedBatch, parts: Parts, seconds: Seconds) -> bool:
        """Changes the weights once; says whether some process was told to stop."""
        step, processes = self.moment.position.step, self.run.processes
        processes.at_step(self.moment.done)
        names = [TOTAL, *self.objective.names(step)]
        sums = dict.fromkeys(names, 0.0)
        part_losses = [0.0] * self.num_parts
        self.objective.train()
        self.optimiser.zero_grad(set_to_none=True)
        for part, batch in parts.items():
            # not of the process: a part's dropout is the same wherever it is computed
            torch.manual_seed(derive_seed(self.recipe.seed, "step", self.moment.stage, step, part))
            share = len(split_batch(planned.cuts, part, self.num_parts)) / len(planned.cuts)
            with self.parallel.accumulate(last=part == max(parts)):
                losses = self._differentiate(batch.to(processes.device), share, seconds)
            part_losses[part] = losses[TOTAL] if share else 0.0
            for name in names:
                sums[name] += share * losses.get(name, math.nan) if share else 0.0
        clock = time.perf_counter()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm).item()
        *totals, stop = processes.sum([*part_losses, *sums.values(), float(self.run.stop.received)])
        part_losses, sums = totals[: self.num_parts], dict(zip(names, totals[self.num_parts :], strict=True))
        if not math.isfinite(norm) or not all(map(math.isfinite, part_losses)):
            self._stop_non_finite(planned, part_losses, norm)
        rate = learning_rate(self.settings, step, self.total)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        seconds.optimiser = time.perf_counter() - clock
        self._record(planned, sums, {"rate": rate, "gradient_norm": norm}, seconds)
        return stop > 0

    def _record(
        self, planned: PlannedBatch, sums: dict[str, float], others: dict[str, float], seconds: Seconds
    ) -> None:
        step = self.moment.position.step
        factors = {
            f"{name}.{what}": value
            for name, loss in self.stage.losses.items()
            for what, value in {"weight": factor_at(loss.weight, step), **loss.factors(step)}.items()
        }
        self.run.journal.step(
            {
                "step": self.moment.done + 1,
                "stage": self.name,
                "epoch": self.moment.position.epoch,
                **sums,
                **others,
                "factors": factors,
                "utterances": len(planned.cuts),
                "frames": sum(map(num_frames, planned.cuts)),
                "seconds": {name: round(value, 6) for name, value in vars(seconds).items()},
            }
        )

    def _differentiate(self, batch: Batch, share: float, seconds: Seconds) -> dict[str, float]:
        """Adds the gradient of a part, by its share of the batch; returns its losses."""
        clock = time.perf_counter()
        device = self.run.processes.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            losses = self.parallel(batch, self.moment.position.step)
        values = {name: value.item() for name, value in losses.items()}
        seconds.forward += time.perf_counter() - clock
        clock = time.perf_counter()
        self.parallel.backward(losses[TOTAL], share)
        seconds.backward += time.perf_counter() - clock
        return values

    def _planned(self) -> Iterator[PlannedBatch]:
        for planned in self.stream.after(self.moment.position):
            yield planned
            if self._is_last(planned.after):
                return

    def _loading(self) -> "partial[Parts]":
        run = self.run
        loader = BatchLoader(
            run.train,
            run.tokenizers,
            self.recipe.augment,
            derive_seed(self.recipe.seed, "augment", self.moment.stage),
            self.recipe.model.encoder.subsampling,
        )
        parts = range(run.processes.rank, self.num_parts, run.processes.count)
        return partial(loader.load_parts, parts=parts, num_parts=self.num_parts)

    def _is_last(self, after: Position) -> bool:
        if self.stage.steps is not None:
            return after.step >= self.stage.steps
        return after.epoch >= (self.stage.epochs or 0)

    def _is_regular(self, after: Position) -> bool:
        """Whether a checkpoint is due."""
        due = self.recipe.checkpoints
        if due.every_steps is not None:
            return after.step % due.every_steps == 0
        return after.epoch > self.moment.position.epoch and after.epoch % (due.every_epochs or 1) == 0

    def _validate(self) -> dict[str, Any]:
        """What was found on the development set; nothing, if nobody wants to know."""
        if self.recipe.monitor.dev_utterances == 0:
            return {}
        step = max(0, self.moment.position.step - 1)
        found = validate(self.objective, self.run, self.stage, step)
        self.run.journal.dev({"step": self.moment.done, "stage": self.name, **found})
        return found

    def _save(self, regular: bool, dev: dict[str, Any] | None = None) -> None:
        if not self.run.processes.first:
            return
        path = checkpoint_path(self.run.files.checkpoints, self.moment.stage, self.moment.position.step)
        tensors = optimiser_tensors(self.optimiser, self.parameter_names)
        state = self.moment.to_state(regular) | {"dev": dev or {}}
        save_checkpoint(path, Checkpoint(self.objective.state_dict(), tensors, state))
        kept = self.recipe.checkpoints
        prune_checkpoints(self.run.files.checkpoints, kept.keep, kept.average_of)
        self.run.journal.note(f"checkpoint {path.name}")

    def _snapshot(self) -> None:
        monitor, ctc = self.recipe.monitor, self.stage.watched
        if ctc is None or self.moment.done not in monitor.snapshot_steps or not self.run.processes.first:
            return
        write_snapshot(self.run, self.moment, self.name, ctc, self.objective.system)

    def _look_back(self, parts: Parts) -> None:
        """At the end of a stage: how much of a step the CTC losses and the trimming are; a last snapshot."""
        if self.moment.stage + 1 == len(self.recipe.stages):
            self._snapshot()
        if not parts:
            return
        batch = next(iter(parts.values())).to(self.run.processes.device)
        found = loss_seconds(self.objective, batch, self.moment.position.step)
        self.run.journal.note(
            f"losses and trimming: {(found['ctc'] + found['trim']) / found['step']:.2%} of a step "
            f"({found['ctc'] * 1e3:.2f} + {found['trim'] * 1e3:.2f} of {found['step'] * 1e3:.1f} ms)"
        )
        self.run.journal.timing({"step": self.moment.done, "stage": self.name, "loss_seconds": found})

    def _stop_non_finite(self, planned: PlannedBatch, part_losses: list[float], norm: float) -> None:
        """Saves the ids of the parts whose loss is not finite; of all, if only the gradient is not."""
        wrong = [i for i, loss in enumerate(part_losses) if not math.isfinite(loss)]
        parts = wrong or range(self.num_parts)
        ids = [cut_id(cut) for part in parts for cut in split_batch(planned.cuts, part, self.num_parts)]
        step = self.moment.position.step + 1
        why = f" ({self.objective.refused})" if self.objective.refused else ""
        found = f"loss is {part_losses[wrong[0]]}{why}" if wrong else f"gradient's norm is {norm}"
        path = self.run.files.path / f"non-finite-stage-{self.moment.stage}-step-{step:07d}.json"
        if self.run.processes.first:
            write_json(path, {"stage": self.name, "step": step, "found": found, "ids": ids})
        named = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
        raise NonFiniteError(
            f"step {step} of stage {self.name!r}: the {found}; the {len(ids)} utterances of the "
            f"batch are in {path}: {named}"
        )
