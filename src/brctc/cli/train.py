"""`brctc train`"""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.shared import Assignments, Flag, find_recipe, parse_assignments
from brctc.train import Interrupted, load_recipe, read_metrics, train
from brctc.train.journal import describe_look

CONTINUES = "The same command with --resume continues."


@dataclass(frozen=True, kw_only=True)
class Command:
    """Train all stages of a recipe; its corpus is prepared first, if it is not yet.
    - RUN gets the log, the metrics (also for TensorBoard), checkpoints and the model.
    - Ctrl-C ends the run after its current step. --resume continues a run exactly where
      it was stopped or killed.

    Examples:
      brctc train handwriting/brctc --out exp/handwriting
      brctc train mine.yaml --out exp/mine --set batch.seconds=200 stages.first.epochs=20
      torchrun --standalone --nproc-per-node 4 -m brctc train mine.yaml --out exp/mine
    """

    recipe: Annotated[str, Positional, arg(metavar="RECIPE")]
    """A YAML file, or a recipe that comes with brctc by its name."""
    out: Annotated[Path, arg(metavar="RUN")]
    """Directory of the run."""
    resume: Flag = False
    """Continue the run that is in RUN."""
    fall_back: Flag = False
    """Set damaged checkpoints aside and resume from the newest good one."""
    set: Assignments = ()
    """Change values of the recipe, by their dotted keys."""

    def run(self) -> None:
        """Trains, and says what was reached."""
        recipe = load_recipe(find_recipe(self.recipe), parse_assignments(self.set))
        try:
            model = train(recipe, self.out, self.resume, fall_back=self.fall_back, jobs=None)
        except (Interrupted, KeyboardInterrupt) as stop:
            raise KeyboardInterrupt(f"{str(stop) or 'stopped'}\n{CONTINUES}") from None
        if os.environ.get("RANK", "0") != "0":  # torchrun's other processes
            return
        if reached := describe_last(self.out):
            print(reached)
        prepared = recipe.corpus.prepared
        decode = ["brctc", "decode", str(self.out), "--prepared", prepared, "--split", "dev"]
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
