"""A whole training: all stages of a recipe, from prepared data to a model that can be decoded."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from brctc.data import Prepared, Tokenizer, feature_statistics
from brctc.files import remove_unfinished, write_json
from brctc.models import Model, System, count_parameters, load_model, save_model
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
from brctc.train.journal import Journal, preparation_bar
from brctc.train.loop import StageLoop
from brctc.train.recipe import RECIPE, RecipeError, differences, read_recipe
from brctc.train.run import Moment, Run, StopSignal
from brctc.train.schedule import risk_factor
from brctc.train.stream import derive_seed

TOKENS, DATA, MODEL, LOCK = "tokens.json", "data.json", "model", ".lock"


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
    run_dir = Path(run_dir)
    aside: list[Path] = []
    with processes() as group, ExitStack() as stack:
        _check_device(recipe, group)
        if group.first:
            stack.enter_context(_locked(run_dir))
            _check_run(recipe, run_dir, resume)
        group.wait()
        if _has_model(run_dir):
            return run_dir / MODEL
        if group.first:
            for written in (run_dir, run_dir / "checkpoints", run_dir / "snapshots"):
                remove_unfinished(written)
            if fall_back:
                aside = set_aside_damaged(run_dir / "checkpoints")
            if not is_prepared(recipe):
                with preparation_bar(progress) as advance:
                    prepare_recipe(recipe, advance)
        group.wait()
        train_split, dev_split = open_corpus(recipe, as_before=(run_dir / DATA).exists())
        group.wait()
        _check_data(run_dir, (train_split, dev_split), group)
        tokenizer = _tokenizer(recipe, run_dir, train_split, group)
        found = latest_checkpoint(run_dir / "checkpoints") if resume else None
        moment = Moment.from_state(found[1].state) if found else Moment()
        journal = Journal(
            run_dir if group.first else None,
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
        run = Run(recipe, run_dir, train_split, dev_split, tokenizer, texts.num_labels, group, journal, stop)
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
    return run_dir / MODEL


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


def is_trained(recipe: Recipe, run_dir: str | Path) -> bool:
    """Whether the run is there and complete; one that was begun with another recipe is refused."""
    run_dir = Path(run_dir)
    if (run_dir / RECIPE).exists() and _has_begun(run_dir):
        _check_run(recipe, run_dir, resume=True)
    return _has_model(run_dir)


def _has_model(run_dir: Path) -> bool:
    return (run_dir / MODEL / "model.json").exists()


def model_directory(path: str | Path) -> Path:
    """The model of a run, or a model's own directory."""
    path = Path(path)
    if not (path / RECIPE).exists():
        return path
    if not _has_model(path):
        raise ValueError(f"the run {path} has no model yet: brctc train ... --resume completes it")
    return path / MODEL


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
        for path in list_checkpoints(run.checkpoints)
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
    save_model(run.directory / MODEL, system, run.tokenizer, run.recipe.features, stage.trim, description)
    run.journal.note(
        f"model of {len(averaged)} checkpoints after {moment.done} steps, {moment.seconds:.0f} s"
    )


def _tokenizer(recipe: Recipe, run_dir: Path, train_split: Prepared, group: Processes) -> Tokenizer:
    """Taken over from `start` or made from the training texts, once; a resumed run has its own again."""
    path = run_dir / TOKENS
    if group.first and not path.exists():
        if recipe.start is not None:
            tokenizer = load_model(model_directory(recipe.start)).tokenizer
        else:
            tokenizer = Tokenizer.train(
                [utterance.text for utterance in train_split.utterances], recipe.tokens
            )
        write_json(path, tokenizer.to_dict())
    group.wait()
    return Tokenizer.from_dict(json.loads(path.read_text(encoding="utf-8")))


def _check_data(run_dir: Path, splits: Sequence[Prepared], group: Processes) -> None:
    """A resumed run goes on exactly as it would have: with the same utterances."""
    path = run_dir / DATA
    now = {split.split: split.digest() for split in splits}
    if group.first and not path.exists():
        write_json(path, now)
    group.wait()
    before = json.loads(path.read_text(encoding="utf-8"))
    for split in splits:
        if before[split.split] != now[split.split]:
            raise RecipeError(
                f"{run_dir} was begun with another split {split.split!r} than {split.directory} has now: "
                "prepare what it was, or choose another directory for a new run"
            )


def _has_begun(run_dir: Path) -> bool:
    """Whether there is anything to continue."""
    return _has_model(run_dir) or bool(list_checkpoints(run_dir / "checkpoints"))


def _check_run(recipe: Recipe, run_dir: Path, resume: bool) -> None:
    path = run_dir / RECIPE
    content = recipe.model_dump(mode="json")
    if not path.exists() or not _has_begun(run_dir):  # one that failed before its first checkpoint is none
        for written in (TOKENS, DATA):
            (run_dir / written).unlink(missing_ok=True)
        write_json(path, content)
        return
    if not resume:
        raise FileExistsError(f"{run_dir} holds a run already: resume it, or choose another directory")
    other = read_recipe(run_dir).model_dump(mode="json")
    starts = [Path(found["start"]).resolve() for found in (other, content) if found["start"] is not None]
    if len(starts) == 2 and starts[0] == starts[1]:  # however it is written
        other["start"] = content["start"]
    if json.dumps(other) != json.dumps(content):  # the order of stages counts too
        order = ("the order of stages", list(other["stages"]), list(content["stages"]))
        key, before, now = next(differences(other, content), order)
        raise RecipeError(f"{run_dir} was begun with another recipe: {key} was {before!r}, now it is {now!r}")


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
def _locked(run_dir: Path) -> Iterator[None]:
    """Two trainings in one directory would spoil each other. The lock dies with the process."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(f"another training is running in {run_dir}") from None
        yield
