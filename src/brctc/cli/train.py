"""`brctc train`"""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from brctc.cli.shared import Assignments, Flag, find_recipe, parse_assignments, progress_bars
from brctc.report.cost_table import cost_table
from brctc.report.tables import to_rich
from brctc.train import Interrupted, Recipe, load_recipe, read_metrics, train
from brctc.train.cost import choose_devices, estimate_cost
from brctc.train.journal import describe_look

CONTINUES = "The same command with --resume continues."


@dataclass(frozen=True, kw_only=True)
class Command:
    """Train all stages of a recipe; its corpus is prepared first, if it is not yet.
    - RUN gets the log, the metrics (also for TensorBoard), checkpoints and the model.
    - Ctrl-C ends the run after its current step. --resume continues a run exactly where
      it was stopped or killed.
    - --dry-run says what it will cost: parameters, steps, memory and hours. Nothing is
      written; a corpus that is not prepared is as large as published, or as --hours says.

    Examples:
      brctc train handwriting/brctc --out exp/handwriting
      brctc train mine.yaml --out exp/mine --set batch.seconds=200 stages.first.epochs=20
      brctc train paper/aishell1-attention-brctc --dry-run --device a100 --gpus 8
      torchrun --standalone --nproc-per-node 4 -m brctc train mine.yaml --out exp/mine
    """

    recipe: Annotated[str, Positional, arg(metavar="RECIPE")]
    """A YAML file, or a recipe that comes with brctc by its name."""
    out: Annotated[Path | None, arg(metavar="RUN", help_behavior_hint="")] = None
    """Directory of the run; needed unless it is a dry run."""
    resume: Flag = False
    """Continue the run that is in RUN."""
    fall_back: Flag = False
    """Set damaged checkpoints aside and resume from the newest good one."""
    set: Assignments = ()
    """Change values of the recipe, by their dotted keys."""
    dry_run: Flag = False
    """Check the recipe and its data, and say what the training will cost."""
    device: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: all that are known)")] = (
        None
    )
    """Of a dry run: whose hours are wanted, such as a100."""
    gpus: Annotated[int, arg(metavar="N", help_behavior_hint="(default: 1)")] = 1
    """Of a dry run: how many devices share a batch."""
    hours: Annotated[float | None, arg(metavar="HOURS", help_behavior_hint="")] = None
    """Of a dry run: of speech in a corpus that is not prepared."""
    pairs: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Of a dry run: of texts in a corpus that is not prepared."""

    def run(self) -> None:
        """Trains, and says what was reached."""
        self._check()
        recipe = load_recipe(find_recipe(self.recipe), parse_assignments(self.set))
        if self.dry_run:
            return self._estimate(recipe)
        assert self.out is not None, "it was checked"
        self._train(recipe, self.out)

    def _check(self) -> None:
        """Which options belong together."""
        if self.dry_run:
            wrong = {"--out": self.out is not None, "--resume": self.resume, "--fall-back": self.fall_back}
            problem = "a dry run writes nothing: leave it out"
        else:
            given = {"--device": self.device, "--hours": self.hours, "--pairs": self.pairs}
            wrong = {option: value is not None for option, value in given.items()}
            wrong["--gpus"] = self.gpus != 1
            problem = "it is of a dry run: give --dry-run, too"
        for option, there in wrong.items():
            if there:
                raise ValueError(f"{option}: {problem}")
        if not self.dry_run and self.out is None:
            raise ValueError(
                "--out RUN is needed: the directory of the run; or --dry-run, which writes nothing"
            )

    def _estimate(self, recipe: Recipe) -> None:
        devices = choose_devices(self.device, recipe.precision)
        with progress_bars() as show:
            cost = estimate_cost(recipe, devices=self.gpus, hours=self.hours, pairs=self.pairs, show=show)
        Console().print(to_rich(cost_table(f"{self.recipe}: what it will cost", cost, devices)))

    def _train(self, recipe: Recipe, out: Path) -> None:
        try:
            model = train(recipe, out, self.resume, fall_back=self.fall_back, jobs=None)
        except (Interrupted, KeyboardInterrupt) as stop:
            raise KeyboardInterrupt(f"{str(stop) or 'stopped'}\n{CONTINUES}") from None
        if os.environ.get("RANK", "0") != "0":  # torchrun's other processes
            return
        if reached := describe_last(out):
            print(reached)
        prepared = recipe.corpus.prepared
        decode = ["brctc", "decode", str(out), "--prepared", prepared, "--split", "dev"]
        print(f"The model is in {model}. Try: {shlex.join(decode)}")


def describe_last(run_dir: Path) -> str:
    """What the last look at the development set has found; nothing if there was none."""
    looks = [record for record in read_metrics(run_dir) if "dev_loss" in record]
    if not looks:
        return ""
    last = looks[-1]
    said = describe_look(last) or [f"dev loss {last['dev_loss']:.3f}"]
    said += [f"down-sampling factor {last['dev_factor']:.3f}"] if "dev_factor" in last else []
    return ", ".join(said)
