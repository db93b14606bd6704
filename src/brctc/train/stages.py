"""A whole training: all stages of a recipe, from prepared data to a model that can be decoded."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from brctc.data import Prepared, Tokenizer, feature_statistics
from brctc.files import read_json, remove_unfinished, write_json
from brctc.models import Model, System, count_parameters, load_model, save_model
from brctc.progress import ProgressDisplay
from brctc.runs import RunDirectory, model_directory
from brctc.train.batch_order import derive_seed
from brctc.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    average_weights,
    latest_checkpoint,
    list_checkpoints,
    load_state,
    set_aside_damaged,
)
from brctc.train.config import Recipe
from brctc.train.corpus import check_texts, is_prepared, open_corpus, prepare_recipe
from brctc.train.distributed import Processes, processes
from brctc.train.journal import Journal
from brctc.train.loop import StageLoop
from brctc.train.recipe import RecipeError, differences, read_recipe
from brctc.train.run import Moment, Run, StopSignal
from brctc.train.schedule import risk_factor


def train(
    recipe: Recipe,
    run_dir: str | Path,
    resume: bool = False,
    *,
    fall_back: bool = False,
    progress: bool = True,
) -> Path:
    """Trains all stages of a recipe in `run_dir` and returns the directory of the model.

    Args:
        recipe: what to train; see `load_recipe`.
        run_dir: gets recipe.json, train.log, metrics.jsonl, tensorboard/, checkpoints/, snapshots/ and,
            at the end, model/.
        resume: continue a run that was stopped or killed, exactly as it would have gone on. A run that
            has not come to its first checkpoint starts again; one that is complete is left as it is.
        fall_back: set damaged checkpoints aside and resume from the newest good one.
        progress: show bars.
    """
    files = RunDirectory(run_dir)
    run_dir = files.path
    aside: list[Path] = []
    with processes() as group, ExitStack() as stack:
        _check_device(recipe, group)
        if group.first:
            stack.enter_context(_locked(files))
            _begin_or_continue(recipe, files, resume)
        group.wait()
        if files.has_model:
            return files.model
        if group.first:
            for written in (files.path, files.checkpoints, files.snapshots):
                remove_unfinished(written)
            if fall_back:
                aside = set_aside_damaged(files.checkpoints)
            if not is_prepared(recipe):
                with ProgressDisplay(visible=progress) as display:
                    prepare_recipe(recipe, partial(display.show, "preparing data"))
        group.wait()
        train_split, dev_split = open_corpus(recipe, as_before=files.data_file.exists())
        group.wait()
        _check_data(files, (train_split, dev_split), group)
        tokenizer = _tokenizer(recipe, files, train_split, group)
        found = latest_checkpoint(files.checkpoints) if resume else None
        moment = Moment.from_state(found[1].state) if found else Moment()
        journal = Journal(
            files if group.first else None,
            done=moment.done,
            tensorboard=recipe.monitor.tensorboard,
            progress=progress and group.first,
        )
        stack.enter_context(journal)
        for path in aside:
            journal.note(f"set aside: {path.name}")
        ctc = any(stage.weights.ctc for stage in recipe.stages.values())
        texts = check_texts(train_split, tokenizer, recipe.model.encoder.subsampling, ctc=ctc)
        for lacking in filter(None, (texts.lacking, check_texts(dev_split, tokenizer).lacking)):
            journal.note(lacking)
        stop = stack.enter_context(StopSignal())
        run = Run(recipe, files, train_split, dev_split, tokenizer, texts.num_labels, group, journal, stop)
        system, optimiser_state = _begin(run, moment, found)
        stages = list(recipe.stages.values())
        while True:
            if not moment.finished:
                journal.note(_describe_stage(run, moment, system))
                group.copy_from_first([*system.parameters(), *system.buffers()])
                moment = StageLoop(run, system, moment, optimiser_state)()
            if moment.stage + 1 == len(stages):
                break
            moment = Moment(stage=moment.stage + 1, done=moment.done, seconds=moment.seconds)
            before, system, optimiser_state = system, _system(run, moment.stage), None
            inherit(system, before, stages[moment.stage].inherit or "whole")
        if group.first:
            _write_model(run, moment)
        group.wait()
    return files.model


def _begin(
    run: Run, moment: Moment, found: tuple[Path, Checkpoint] | None
) -> tuple[System, dict[str, Any] | None]:
    """The system as a checkpoint, another run or nothing leaves it, and the optimiser's state."""
    system = _system(run, moment.stage)
    if found is not None:
        path, checkpoint = found
        _load_weights(system, checkpoint.model, path)
        run.journal.note(f"resumed from {path.name}")
        return system, checkpoint.optimiser
    if run.recipe.start is not None:
        _inherit_start(system, run.recipe, load_model(model_directory(run.recipe.start)))
        run.journal.note(f"starts with {run.recipe.start}")
    elif run.recipe.model.normalisation == "global":
        system.set_statistics(*feature_statistics(run.train))
    return system, None


def inherit(system: System, before: System, what: str) -> None:
    """Takes over weights of the stage before: "whole" all that both systems have, "encoder" no decoder's."""
    decoders = ("attention.", "transducer.")
    own = system.state_dict()
    weights = {
        name: tensor
        for name, tensor in before.state_dict().items()
        if name in own and not (what == "encoder" and name.startswith(decoders))
    }
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)} there and {tuple(own[name].shape)} here"
            raise RecipeError(f"cannot inherit {name}: it has shape {shapes}")
    system.load_state_dict(own | weights)


def _begin_or_continue(recipe: Recipe, run: RunDirectory, resume: bool) -> None:
    if not has_begun(run):
        begin_run(recipe, run)
    elif not resume:
        raise FileExistsError(f"{run.path} holds a run already: resume it, or choose another directory")
    else:
        check_same_recipe(recipe, run)


def is_trained(recipe: Recipe, run_dir: str | Path) -> bool:
    """Whether the run is there and complete; one that was begun with another recipe is refused."""
    run = RunDirectory(run_dir)
    if has_begun(run):
        check_same_recipe(recipe, run)
    return run.has_model


def _inherit_start(system: System, recipe: Recipe, model: Model) -> None:
    if model.tokenizer.kind != recipe.tokens.kind:
        raise RecipeError(
            f"start: {recipe.start} has {model.tokenizer.kind} tokens, not {recipe.tokens.kind}"
        )
    if model.features != recipe.features:
        raise RecipeError(f"start: {recipe.start} takes features {model.features}, not {recipe.features}")
    if model.system.config.normalisation != recipe.model.normalisation:
        raise RecipeError(f"start: {recipe.start} has another model.normalisation than the recipe")
    try:
        inherit(system, model.system, next(iter(recipe.stages.values())).inherit or "whole")
    except RecipeError as error:
        raise RecipeError(f"start: {recipe.start}: {error}") from None


def _system(run: Run, stage: int) -> System:
    """A fresh system for a stage, the same whenever it is made."""
    recipe = run.recipe
    torch.manual_seed(derive_seed(recipe.seed, "weights", stage))
    config = recipe.system_of(list(recipe.stages.values())[stage])
    system = System(config, run.train.feature_dim, run.tokenizer.size)
    return system.to(run.processes.device)


def _load_weights(system: System, weights: dict[str, torch.Tensor], path: Path) -> None:
    try:
        system.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint {path} is of another model: {error}") from error


def _describe_stage(run: Run, moment: Moment, system: System) -> str:
    name = list(run.recipe.stages)[moment.stage]
    return (
        f"stage {name} ({moment.stage + 1} of {len(run.recipe.stages)}), from step "
        f"{moment.position.step}: {count_parameters(system):,} parameters, "
        f"{len(run.train.utterances)} utterances, {run.processes.count} processes of "
        f"{torch.get_num_threads()} threads on {run.processes.device}"
    )


def _write_model(run: Run, moment: Moment) -> None:
    """The mean of the last stage's last checkpoints, with all that decoding needs."""
    name, stage = list(run.recipe.stages.items())[-1]
    paths = [
        path
        for path in list_checkpoints(run.files.checkpoints)
        if (state := load_state(path))["regular"] and state["stage"] == moment.stage
    ]
    averaged = paths[-run.recipe.checkpoints.average :]
    system = _system(run, moment.stage).cpu()
    _load_weights(system, average_weights(averaged), averaged[-1])
    risk = run.recipe.risk_of(stage)
    description = {
        "risk": {"kind": risk.kind, "factor": risk_factor(risk.factor, moment.position.step)},
        "final_risk": stage.final_risk.kind,
        "stage": name,
        "steps": moment.done,
        "seconds": round(moment.seconds, 1),
        "averaged": [path.name for path in averaged],
        "recipe": run.recipe.model_dump(mode="json"),
    }
    save_model(run.files.model, system, run.tokenizer, run.recipe.features, stage.trim, description)
    run.journal.note(
        f"model of {len(averaged)} checkpoints after {moment.done} steps, {moment.seconds:.0f} s"
    )


def _tokenizer(recipe: Recipe, files: RunDirectory, train_split: Prepared, group: Processes) -> Tokenizer:
    """Taken over from `start` or made from the training texts, once; a resumed run has its own again."""
    path = files.tokens_file
    if group.first and not path.exists():
        if recipe.start is not None:
            tokenizer = load_model(model_directory(recipe.start)).tokenizer
        else:
            tokenizer = Tokenizer.train(
                [utterance.text for utterance in train_split.utterances], recipe.tokens
            )
        write_json(path, tokenizer.to_dict())
    group.wait()
    return Tokenizer.from_dict(read_json(path))


def _check_data(files: RunDirectory, splits: Sequence[Prepared], group: Processes) -> None:
    """A resumed run goes on exactly as it would have: with the same utterances."""
    path = files.data_file
    now = {split.split: split.digest() for split in splits}
    if group.first and not path.exists():
        write_json(path, now)
    group.wait()
    before = read_json(path)
    for split in splits:
        if before[split.split] != now[split.split]:
            raise RecipeError(
                f"{files.path} was begun with another split {split.split!r} than {split.directory} has now: "
                "prepare what it was, or choose another directory for a new run"
            )


def has_begun(run: RunDirectory) -> bool:
    """Whether there is anything to continue: a run that failed before its first checkpoint is none."""
    return run.exists and (run.has_model or bool(list_checkpoints(run.checkpoints)))


def check_same_recipe(recipe: Recipe, run: RunDirectory) -> None:
    """Refuses a run that was begun with another recipe."""
    content = recipe.model_dump(mode="json")
    other = read_recipe(run.path).model_dump(mode="json")
    starts = [Path(found["start"]).resolve() for found in (other, content) if found["start"] is not None]
    if len(starts) == 2 and starts[0] == starts[1]:  # however it is written
        other["start"] = content["start"]
    if json.dumps(other) != json.dumps(content):  # the order of stages counts too
        order = ("the order of stages", list(other["stages"]), list(content["stages"]))
        key, before, now = next(differences(other, content), order)
        what = f"{key} was {before!r}, now it is {now!r}"
        raise RecipeError(f"{run.path} was begun with another recipe: {what}")


def begin_run(recipe: Recipe, run: RunDirectory) -> None:
    """Writes down what the run is; what a run that failed at once has left is replaced."""
    for written in (run.tokens_file, run.data_file):
        written.unlink(missing_ok=True)
    write_json(run.recipe_file, recipe.model_dump(mode="json"))


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
def _locked(run: RunDirectory) -> Iterator[None]:
    """Two trainings in one directory would spoil each other. The lock dies with the process."""
    run.path.mkdir(parents=True, exist_ok=True)
    with run.lock_file.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(f"another training is running in {run.path}") from None
        yield
