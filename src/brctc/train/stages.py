"""A whole training: all stages of a recipe, from prepared data to a model that can be decoded."""

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from brctc.data import Prepared, Tokenizer
from brctc.data.batch import SOURCE
from brctc.data.sampling import derive_seed
from brctc.data.text_checks import checked_labels
from brctc.files import read_json, remove_unfinished, write_json
from brctc.models import System, count_parameters, load_model, save_model
from brctc.progress import ProgressDisplay
from brctc.runs import RunDirectory, model_directory
from brctc.train.begin import begin_or_continue
from brctc.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    average_weights,
    choose_checkpoints,
    latest_checkpoint,
    list_checkpoints,
    load_state,
    set_aside_damaged,
)
from brctc.train.config import CTCConfig, Recipe
from brctc.train.corpus import (
    check_curriculum,
    check_texts,
    ensure_prepared,
    first_tokenizers,
    length_checks,
    open_corpus,
)
from brctc.train.engine import Processes, attempt, processes
from brctc.train.factors import factor_at
from brctc.train.inherit import inherit, inherit_start
from brctc.train.journal import Journal
from brctc.train.loop import StageLoop
from brctc.train.objective import Objective
from brctc.train.recipe import RecipeError
from brctc.train.run_context import Moment, Run
from brctc.train.signals import StopSignal

ENDING_S = 60.0
"""How long a training that goes on waits for the one before: told to stop, that one still ends its step."""


def train(
    recipe: Recipe,
    run_dir: str | Path,
    resume: bool = False,
    *,
    fall_back: bool = False,
    progress: bool = True,
    jobs: int | None = 1,
) -> Path:
    """Trains all stages of a recipe in `run_dir` and returns the directory of the model.

    Args:
        recipe: what to train; see `load_recipe`.
        run_dir: gets recipe.json, train.log, metrics.jsonl, tensorboard/, checkpoints/, snapshots/ and,
            at the end, model/.
        resume: continue a run that was stopped or killed, exactly as it would have gone on. A run that
            has not come to its first checkpoint starts again; one that is complete is left as it is.
            Processes that torchrun has restarted resume by themselves.
        fall_back: set damaged checkpoints aside and resume from the newest good one.
        progress: show bars.
        jobs: processes that prepare the corpus, as of `brctc.data.prepare_split`.
    """
    files = RunDirectory(run_dir)
    resume = resume or attempt() > 0
    with processes() as group, ExitStack() as stack:
        _check_device(recipe, group)
        aside: list[Path] = []
        if group.first:
            stack.enter_context(_locked(files, ENDING_S if resume else 0.0))
            aside = _make_ready(recipe, files, resume, fall_back, progress, jobs)
        group.wait_for_first("corpus")
        if files.has_model:
            return files.model
        run, found = _open_run(recipe, files, group, resume, progress, stack)
        for path in aside:
            run.journal.note(f"set aside: {path.name}")
        moment = _train_stages(run, found)
        if group.first:
            _write_model(run, moment)
        group.wait()
    return files.model


def _make_ready(
    recipe: Recipe, files: RunDirectory, resume: bool, fall_back: bool, progress: bool, jobs: int | None
) -> list[Path]:
    """What the first process does alone: the run is begun or continued, and its corpus is there. Returns
    the checkpoints that were set aside."""
    begin_or_continue(recipe, files, resume)
    if files.has_model:
        return []
    for written in (files.path, files.checkpoints, files.snapshots):
        remove_unfinished(written)
    aside = set_aside_damaged(files.checkpoints) if fall_back else []
    with ProgressDisplay(visible=progress) as display:
        show = lambda split, done, total: display.show(f"preparing {split}", done, total)  # noqa: E731
        ensure_prepared(recipe, show, jobs=jobs, as_before=files.data_file.exists())
    train_split, dev_split = open_corpus(recipe)
    _check_data(files, (train_split, dev_split))
    if not files.tokens_file.exists():
        made = first_tokenizers(recipe, train_split)
        write_json(files.tokens_file, {text: tokenizer.to_dict() for text, tokenizer in made.items()})
    return aside


def _open_run(
    recipe: Recipe, files: RunDirectory, group: Processes, resume: bool, progress: bool, stack: ExitStack
) -> tuple[Run, tuple[Path, Checkpoint] | None]:
    """All that the stages need, and the checkpoint to go on from."""
    train_split, dev_split = open_corpus(recipe)
    tokenizers = _read_tokenizers(files)
    found = latest_checkpoint(files.checkpoints) if resume else None
    journal = Journal(
        files if group.first else None,
        done=Moment.from_state(found[1].state).done if found else 0,
        tensorboard=recipe.monitor.tensorboard,
        progress=progress and group.first,
    )
    stack.enter_context(journal)
    if group.first:  # what it finds is stored beside the splits
        for split in (train_split, dev_split):
            for lacking in check_texts(recipe, split, tokenizers):
                journal.note(lacking)
        labels = checked_labels(train_split, length_checks(recipe, tokenizers)[0])
        for stage in recipe.stages.values():
            check_curriculum(recipe, stage, labels)
    group.wait_for_first("texts")
    stop = stack.enter_context(StopSignal())
    return Run(recipe, files, train_split, dev_split, tokenizers, group, journal, stop), found


def _train_stages(run: Run, found: tuple[Path, Checkpoint] | None) -> Moment:
    moment = Moment.from_state(found[1].state) if found else Moment()
    objective, optimiser_state = _begin(run, moment, found)
    stages = list(run.recipe.stages.values())
    while True:
        if not moment.finished:
            run.journal.note(_describe_stage(run, moment, objective.system))
            moment = StageLoop(run, objective, moment, optimiser_state)()
        if moment.stage + 1 == len(stages):
            return moment
        moment = Moment(stage=moment.stage + 1, done=moment.done, seconds=moment.seconds)
        before, objective, optimiser_state = objective, _objective(run, moment.stage), None
        inherit(objective.system, before.system, stages[moment.stage].inherit or "whole")


def _begin(
    run: Run, moment: Moment, found: tuple[Path, Checkpoint] | None
) -> tuple[Objective, dict[str, Any] | None]:
    """The objective as a checkpoint, another run or nothing leaves it, and the optimiser's state."""
    objective = _objective(run, moment.stage)
    if found is not None:
        path, checkpoint = found
        _load_weights(objective, checkpoint.model, path)
        run.journal.note(f"resumed from {path.name}")
        return objective, checkpoint.optimiser
    if run.recipe.start is not None:
        inherit_start(objective.system, run.recipe, load_model(model_directory(run.recipe.start)))
        run.journal.note(f"starts with {run.recipe.start}")
    elif run.recipe.model.normalisation == "global" and run.train.storage.kind != "text":
        objective.system.set_statistics(*run.train.statistics())
    return objective, None


def _objective(run: Run, stage: int) -> Objective:
    """A fresh system with the losses of a stage, the same whenever it is made."""
    recipe = run.recipe
    torch.manual_seed(derive_seed(recipe.seed, "weights", stage))
    config = list(recipe.stages.values())[stage]
    text_source = run.train.storage.kind == "text"
    input_size = run.tokenizers[SOURCE].size if text_source else run.train.feature_dim
    sizes = {text: tokenizer.size for text, tokenizer in run.tokenizers.items()}
    system = System(recipe.system_of(config), input_size, sizes)
    return Objective(system, config.losses, config.trim).to(run.processes.device)


def _load_weights(module: torch.nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint {path} is of another model: {error}") from error


def _describe_stage(run: Run, moment: Moment, system: System) -> str:
    name = list(run.recipe.stages)[moment.stage]
    return (
        f"stage {name} ({moment.stage + 1} of {len(run.recipe.stages)}), from step "
        f"{moment.position.step}: {count_parameters(system):,} parameters, "
        f"{len(run.train):,} utterances, {run.processes.count} processes of "
        f"{torch.get_num_threads()} threads on {run.processes.device}"
    )


def _write_model(run: Run, moment: Moment) -> None:
    """The mean of the last stage's last or best checkpoints, with all that decoding needs."""
    name, stage = list(run.recipe.stages.items())[-1]
    settings = run.recipe.checkpoints
    of_run = list_checkpoints(run.files.checkpoints)
    paths = [path for path in of_run if load_state(path)["stage"] == moment.stage]
    averaged = choose_checkpoints(paths, settings.average, settings.average_of)
    objective = _objective(run, moment.stage).cpu()
    _load_weights(objective, average_weights(averaged), averaged[-1])
    ctcs = {term: loss for term, loss in stage.losses.items() if isinstance(loss, CTCConfig)}
    description = {
        "risks": {
            term: {"kind": ctc.risk.kind, "factor": factor_at(ctc.risk.factor, moment.position.step)}
            for term, ctc in ctcs.items()
        },
        "spikes_moved": _spikes_moved(run.recipe),
        "corpus": run.recipe.corpus.kind,
        "stage": name,
        "steps": moment.done,
        "seconds": round(moment.seconds, 1),
        "averaged": [path.name for path in averaged],
        "recipe": run.recipe.model_dump(mode="json"),
    }
    save_model(
        run.files.model, objective.system, run.tokenizers, run.recipe.features, stage.trim, description
    )
    run.journal.note(
        f"model of the {settings.average_of} {len(averaged)} checkpoints after {moment.done} steps, "
        f"{moment.seconds:.0f} s: {', '.join(path.name for path in averaged)}"
    )


def _spikes_moved(recipe: Recipe) -> bool:
    """Whether a stage has moved spikes away from their words: plain CTC, behind it, leaves them there."""
    losses = [loss for stage in recipe.stages.values() for loss in stage.losses.values()]
    return any(isinstance(loss, CTCConfig) and loss.risk.moves_spikes for loss in losses)


def _read_tokenizers(files: RunDirectory) -> dict[str, Tokenizer]:
    content = read_json(files.tokens_file)
    if not isinstance(content, dict):
        raise ValueError(f"{files.tokens_file} is damaged: it holds no tokenizers")
    try:
        return {text: Tokenizer.from_dict(saved) for text, saved in content.items()}
    except ValueError as error:
        raise ValueError(f"{files.tokens_file} is damaged: {error}") from None


def _check_data(files: RunDirectory, splits: Sequence[Prepared]) -> None:
    """A resumed run goes on exactly as it would have: with the same utterances."""
    now = {split.split: split.digest() for split in splits}
    if not files.data_file.exists():
        write_json(files.data_file, now)
    before = read_json(files.data_file)
    for split in splits:
        if not isinstance(before, dict) or before.get(split.split) != now[split.split]:
            raise RecipeError(
                f"{files.path} was begun with another split {split.split!r} than {split.directory} has now: "
                "prepare what it was, or choose another directory for a new run"
            )


def _check_device(recipe: Recipe, group: Processes) -> None:
    if recipe.precision != "bf16":
        return
    if group.device.type == "cuda":
        able = torch.cuda.is_bf16_supported()
    else:
        able = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if not able:
        raise RecipeError(f"precision: this {group.device.type} has no bf16, choose float32")


@contextmanager
def _locked(run: RunDirectory, patience_s: float) -> Iterator[None]:
    """Two trainings in one directory would spoil each other. The lock dies with the process."""
    run.path.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience_s
    with run.lock_file.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise FileExistsError(f"another training is running in {run.path}") from None
                time.sleep(0.1)
        yield
