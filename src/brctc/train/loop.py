"""The training loop: one for all systems, corpora and numbers of processes.

Every random choice of a step is a function of the recipe's seed, the stage, the step and the part of the
batch, so a run that continues from a checkpoint does exactly what it would have done.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from brctc.data import Batch
from brctc.files import write_json
from brctc.models import Objective, System
from brctc.train.batch_order import BatchStream, PlannedBatch, Position, derive_seed
from brctc.train.checkpoint import (
    Checkpoint,
    checkpoint_path,
    load_optimiser,
    optimiser_tensors,
    prune_checkpoints,
    save_checkpoint,
)
from brctc.train.loader import Parts, load_ahead, load_parts, split_batch, to_device
from brctc.train.run import Interrupted, Moment, NonFiniteError, Run
from brctc.train.schedule import learning_rate, risk_at, risk_factor
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
    optimiser: float = 0.0
    """Summing over processes, clipping, Adam."""


class StageLoop:
    """The steps of one stage."""

    def __init__(
        self, run: Run, system: System, moment: Moment, optimiser_state: dict[str, Tensor] | None = None
    ) -> None:
        self.run, self.system, self.moment = run, system, moment
        self.recipe = run.recipe
        self.name, self.stage = list(run.recipe.stages.items())[moment.stage]
        self.settings = run.recipe.optimiser_of(self.stage)
        named = [(name, p) for name, p in system.named_parameters() if p.requires_grad]
        self.parameter_names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.optimiser = torch.optim.Adam(self.parameters, betas=self.settings.betas, fused=True)
        if optimiser_state is not None:
            load_optimiser(self.optimiser, self.parameter_names, optimiser_state)
        self.stream = BatchStream(
            run.train.utterances,
            run.num_labels,
            self.recipe.batch_s,
            seed=derive_seed(self.recipe.seed, "data", moment.stage),
            curriculum=self.stage.curriculum,
        )
        self.total = self.stage.steps or self.stream.steps_of(self.stage.epochs or 0)
        count = run.processes.count
        self.num_parts = math.ceil(self.settings.accumulate / count) * count
        self.refused = ""  # what a loss has said of scores that it could not take

    def __call__(self) -> Moment:
        """Runs the stage to its end."""
        run = self.run
        run.journal.begin(self.name, self.moment.position.step, self.total)
        batches = load_ahead(self._planned(), self._load)
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
                    self._validate()
                    self._save(regular=True)  # last: what a killed run has not written, it does again
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
        objective = self._objective(step)
        names = ["loss", *objective.weights(self.system.config), *(["factor"] if objective.trim else [])]
        sums = dict.fromkeys(names, 0.0)
        part_losses = [0.0] * self.num_parts
        self.system.train()
        self.optimiser.zero_grad(set_to_none=True)
        for part, batch in parts.items():
            # not of the process: a part's dropout is the same wherever it is computed
            torch.manual_seed(derive_seed(self.recipe.seed, "step", self.moment.stage, step, part))
            share = len(batch.ids) / len(planned.indices)  # losses are means over utterances
            losses = self._differentiate(to_device(batch, processes.device), objective, share, seconds)
            part_losses[part] = losses["loss"]
            for name in names:
                sums[name] += share * losses.get(name, math.nan)
        clock = time.perf_counter()
        processes.sum_gradients(self.parameters)
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
        self.run.journal.step(
            {
                "step": self.moment.done + 1,
                "stage": self.name,
                "epoch": self.moment.position.epoch,
                **sums,
                "rate": rate,
                "inter_risk": risk_factor(self.stage.inter_risk.factor, step),
                "final_risk": risk_factor(self.stage.final_risk.factor, step),
                "gradient_norm": norm,
                "utterances": len(planned.indices),
                "frames": sum(self.run.train.utterances[i].num_frames for i in planned.indices),
                "seconds": {name: round(value, 6) for name, value in vars(seconds).items()},
            }
        )
        return stop > 0

    def _differentiate(
        self, batch: Batch, objective: Objective, share: float, seconds: Seconds
    ) -> dict[str, float]:
        """Adds the gradient of a part, by its share of the batch; returns its losses."""
        clock = time.perf_counter()
        device = self.run.processes.device
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
                losses = self.system(batch, objective)
        except ValueError as error:  # a loss refuses NaN and names its place
            self.refused = f" ({error})"
            return {"loss": math.nan}
        values = {name: value.item() for name, value in losses.items()}
        seconds.forward += time.perf_counter() - clock
        clock = time.perf_counter()
        (share * losses["loss"]).backward()
        seconds.backward += time.perf_counter() - clock
        return values

    def _objective(self, step: int) -> Objective:
        stage = self.stage
        return Objective(
            inter_risk=risk_at(stage.inter_risk, step),
            final_risk=risk_at(stage.final_risk, step),
            trim=stage.trim,
            peak_first=risk_factor(stage.peak_first, step),
            inter_weight=stage.weights.inter,
            ctc_weight=stage.weights.ctc,
            attention_weight=stage.weights.attention,
            transducer_weight=stage.weights.transducer,
        )

    def _planned(self) -> Iterator[PlannedBatch]:
        for planned in self.stream.after(self.moment.position):
            yield planned
            if self._is_last(planned.after):
                return

    def _load(self, planned: PlannedBatch) -> Parts:
        run = self.run
        return load_parts(
            run.train,
            run.tokenizer,
            planned,
            range(run.processes.rank, self.num_parts, run.processes.count),
            self.num_parts,
            self.recipe.augment,
            derive_seed(self.recipe.seed, "augment", self.moment.stage),
            self.recipe.model.encoder.subsampling,
        )

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

    def _validate(self) -> None:
        run = self.run
        if self.recipe.monitor.dev_utterances == 0:
            return
        found = validate(self.system, run.dev, run.tokenizer, self.recipe, self.stage.trim, run.processes)
        run.journal.dev({"step": self.moment.done, "stage": self.name, **found})

    def _save(self, regular: bool) -> None:
        if not self.run.processes.first:
            return
        path = checkpoint_path(self.run.files.checkpoints, self.moment.stage, self.moment.position.step)
        tensors = optimiser_tensors(self.optimiser, self.parameter_names)
        state = self.moment.to_state(regular)
        save_checkpoint(path, Checkpoint(self.system.state_dict(), tensors, state))
        prune_checkpoints(self.run.files.checkpoints, self.recipe.checkpoints.keep)
        self.run.journal.note(f"checkpoint {path.name}")

    def _snapshot(self) -> None:
        monitor = self.recipe.monitor
        if self.moment.done not in monitor.snapshot_steps or not self.run.processes.first:
            return
        step, risk = self.moment.position.step, self.recipe.risk_of(self.stage)
        write_snapshot(
            self.run.files.snapshot_file(self.moment.done),
            self.system,
            self.run.dev,
            self.run.tokenizer,
            range(min(monitor.snapshot_utterances, len(self.run.dev.utterances))),
            risk_at(risk, step),
            {
                "step": self.moment.done,
                "stage": self.name,
                "risk": risk.kind,
                "factor": risk_factor(risk.factor, step),
            },
        )

    def _look_back(self, parts: Parts) -> None:
        """At the end of a stage: how much of a step the CTC losses and the trimming are; a last snapshot."""
        if self.moment.stage + 1 == len(self.recipe.stages):
            self._snapshot()
        if not parts:
            return
        batch = to_device(next(iter(parts.values())), self.run.processes.device)
        found = loss_seconds(self.system, batch, self._objective(self.moment.position.step))
        self.run.journal.note(
            f"losses and trimming: {(found['ctc'] + found['trim']) / found['step']:.2%} of a step "
            f"({found['ctc'] * 1e3:.2f} + {found['trim'] * 1e3:.2f} of {found['step'] * 1e3:.1f} ms)"
        )
        self.run.journal.timing({"step": self.moment.done, "stage": self.name, "loss_seconds": found})

    def _stop_non_finite(self, planned: PlannedBatch, part_losses: list[float], norm: float) -> None:
        """Saves the ids of the parts whose loss is not finite; of all, if only the gradient is not."""
        wrong = [i for i, loss in enumerate(part_losses) if not math.isfinite(loss)]
        parts = wrong or range(self.num_parts)
        indices = [j for part in parts for j in split_batch(planned.indices, part, self.num_parts)]
        ids = [self.run.train.utterances[i].id for i in indices]
        step = self.moment.position.step + 1
        found = f"loss is {part_losses[wrong[0]]}{self.refused}" if wrong else f"gradient's norm is {norm}"
        path = self.run.files.path / f"non-finite-stage-{self.moment.stage}-step-{step:07d}.json"
        if self.run.processes.first:
            write_json(path, {"stage": self.name, "step": step, "found": found, "ids": ids})
        named = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
        raise NonFiniteError(
            f"step {step} of stage {self.name!r}: the {found}; the {len(ids)} utterances of the "
            f"batch are in {path}: {named}"
        )
