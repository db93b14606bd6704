"""`brctc evaluate`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from brctc.cli.runs import Limit, PreparedOfRuns, Runs, open_models
from brctc.cli.shared import Processes, check_file, progress_bars, show_results
from brctc.evaluate import EvaluationOptions, evaluate_models
from brctc.evaluate.offline import BEAMS


@dataclass(frozen=True, kw_only=True)
class Command:
    """Measure trained models on a prepared split: errors, down-sampling factor, real-time factor.
    - The first run is what the others are compared with.
    - Speed is measured on one thread, all models taking turns, so that a busy machine slows
      all of them; on an idle one the figures are better.

    Examples:
      brctc evaluate exp/vanilla exp/brctc --prepared data/prepared/mine
      brctc evaluate exp/vanilla exp/brctc --split dev --limit 100 --beams 2 10
    """

    runs: Runs
    """Directories of runs or of their models."""
    prepared: PreparedOfRuns = None
    """A directory that `brctc prepare` or `brctc train` has written."""
    split: str = "test"
    """The split to decode."""
    beam: Annotated[int | None, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Hypotheses that a search keeps; greedy ones keep one."""
    limit: Limit = None
    """Decode so many utterances, spread over the split."""
    repeats: int = 3
    """How often an utterance is timed; the median counts."""
    beams: Annotated[tuple[int, ...], arg(metavar="INT ...")] = BEAMS
    """Other sizes of the beam whose speed is measured."""
    batch: int = 32
    """Examples of the batches whose speed is measured, beside that of one alone; 1 for none."""
    jobs: Processes = 1
    """Processes that decode, where there is no GPU; speed is measured in one."""
    out: Annotated[Path, arg(metavar="FILE")] = Path("evaluation.json")
    """Gets the results as JSON; `brctc report` takes it."""

    def run(self) -> None:
        """Measures, writes and shows it."""
        check_file(self.out)
        options = EvaluationOptions(
            self.beam, self.limit, self.repeats, batch=self.batch, beams=self.beams, jobs=self.jobs
        )
        models, corpus = open_models(self.runs, self.prepared, self.split)
        with progress_bars() as progress:
            evaluation = evaluate_models(models, corpus, options, progress=progress)
        evaluation.save(self.out)
        show_results(evaluation)
        print(f"The results are in {self.out}.")
