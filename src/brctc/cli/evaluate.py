"""`brctc evaluate`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from brctc.cli.runs import Limit, PreparedOfRuns, Runs, open_models
from brctc.cli.shared import (
    Processes,
    RtfShare,
    SkipBlanks,
    check_file,
    parse_share,
    progress_bars,
    show_results,
)
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
      brctc evaluate exp/vanilla exp/brctc --split test-clean test-other --rtf-share 1/88
    """

    runs: Runs
    """Directories of runs or of their models."""
    prepared: PreparedOfRuns = None
    """A directory that `brctc prepare` or `brctc train` has written."""
    split: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = ("test",)
    """The splits to decode, all in one table; speed is measured on the first."""
    beam: Annotated[int | None, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Hypotheses that a search keeps; greedy ones keep one."""
    limit: Limit = None
    """Decode so many utterances, spread over the split."""
    repeats: int = 3
    """How often an utterance is timed; the median counts."""
    rtf_share: RtfShare = None
    """Time the first utterances, this share of the split, instead of some that are spread over it."""
    beams: Annotated[tuple[int, ...], arg(metavar="INT ...")] = BEAMS
    """Other sizes of the beam whose speed is measured."""
    batch: int = 32
    """Examples of the batches whose speed is measured, beside that of one alone; 1 for none."""
    skip_blanks: SkipBlanks = None
    """Measure each system that does not trim a second time, without the frames whose CTC blank is more likely
    than this, such as 0.95: its decoder does not see them. That is what trimming has to beat."""
    jobs: Processes = 1
    """Processes that decode, where there is no GPU; speed is measured in one."""
    out: Annotated[Path, arg(metavar="FILE")] = Path("evaluation.json")
    """Gets the results as JSON; `brctc report` takes it."""

    def run(self) -> None:
        """Measures, writes and shows it."""
        check_file(self.out)
        if not self.split or len(set(self.split)) < len(self.split):
            raise ValueError("--split: name one split or several, each once")
        options = EvaluationOptions(
            self.beam,
            self.limit,
            self.repeats,
            rtf_share=parse_share(self.rtf_share),
            batch=self.batch,
            beams=self.beams,
            skip_blanks=self.skip_blanks,
            jobs=self.jobs,
        )
        models, (corpus, *others) = open_models(self.runs, self.prepared, *self.split)
        with progress_bars() as progress:
            evaluation = evaluate_models(models, corpus, options, others=others, progress=progress)
        evaluation.save(self.out)
        show_results(evaluation)
        print(f"The results are in {self.out}.")
