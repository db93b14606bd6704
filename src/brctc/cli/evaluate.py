"""`brctc evaluate`"""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from brctc.cli.runs import Limit, PreparedOfRuns, Runs, open_models
from brctc.cli.shared import check_file, progress_bars, show_results
from brctc.evaluate import evaluate_models
from brctc.evaluate.offline import BEAMS


def command(
    runs: Runs,
    *,
    prepared: PreparedOfRuns = None,
    split: str = "test",
    beam: int = 10,
    limit: Limit = None,
    repeats: int = 3,
    beams: Annotated[tuple[int, ...], arg(metavar="INT ...")] = BEAMS,
    out: Annotated[Path, arg(metavar="FILE")] = Path("evaluation.json"),
) -> None:
    """Measure trained models on a prepared split: errors, down-sampling factor, real-time factor.
    - The first run is what the others are compared with.
    - Speed is measured on one thread, all models taking turns, so that a busy machine slows
      all of them; on an idle one the figures are better.

    Examples:
      brctc evaluate exp/vanilla exp/brctc --prepared data/prepared/mine
      brctc evaluate exp/vanilla exp/brctc --split dev --limit 100 --beams 2 10

    Args:
        runs: Directories of runs or of their models.
        prepared: A directory that `brctc prepare` or `brctc train` has written.
        split: The split to decode.
        beam: Hypotheses that a search keeps; greedy ones keep one.
        limit: Decode so many utterances, spread over the split.
        repeats: How often an utterance is timed; the median counts.
        beams: Other sizes of the beam whose speed is measured.
        out: Gets all of it as JSON; `brctc report` takes it.
    """
    check_file(out)
    models, corpus = open_models(runs, prepared, split)
    with progress_bars() as progress:
        evaluation = evaluate_models(
            models, corpus, beam=beam, limit=limit, repeats=repeats, beams=beams, progress=progress
        )
    evaluation.save(out)
    show_results(evaluation)
    print(f"All of it is in {out}.")
