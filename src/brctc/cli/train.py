"""`brctc train`"""

import os
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.shared import Assignments, Flag, find_recipe, parse_assignments
from brctc.train import Interrupted, load_recipe, read_metrics, train

CONTINUES = "The same command with --resume continues."


def command(
    recipe: Annotated[str, Positional, arg(metavar="RECIPE")],
    *,
    out: Annotated[Path, arg(metavar="RUN")],
    resume: Flag = False,
    fall_back: Flag = False,
    set: Assignments = (),
) -> None:
    """Train all stages of a recipe; its corpus is prepared first, if it is not yet.
    - RUN gets the log, the metrics (also for TensorBoard), checkpoints and the model.
    - Ctrl-C ends the run after its current step. --resume continues a run exactly where
      it was stopped or killed.

    Examples:
      brctc train handwriting/brctc --out exp/handwriting
      brctc train mine.yaml --out exp/mine --set batch_s=200 stages.first.epochs=20
      torchrun --standalone --nproc-per-node 4 -m brctc train mine.yaml --out exp/mine

    Args:
        recipe: A YAML file, or a recipe that comes with brctc by its name.
        out: Directory of the run.
        resume: Continue the run that is in RUN.
        fall_back: Set damaged checkpoints aside and resume from the newest good one.
        set: Change values of the recipe, by their dotted keys.
    """
    chosen = load_recipe(find_recipe(recipe), parse_assignments(set))
    try:
        model = train(chosen, out, resume, fall_back=fall_back)
    except (Interrupted, KeyboardInterrupt) as stop:
        raise KeyboardInterrupt(f"{str(stop) or 'stopped'}\n{CONTINUES}") from None
    if os.environ.get("RANK", "0") != "0":  # torchrun's other processes
        return
    if looks := [record for record in read_metrics(out) if "dev_error" in record]:
        print(f"dev error {looks[-1]['dev_error']:.2%}, down-sampling factor {looks[-1]['dev_factor']:.3f}")
    print(f"The model is in {model}. Try: brctc decode {out} --prepared {chosen.corpus.prepared} --split dev")
