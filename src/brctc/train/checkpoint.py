"""Checkpoints: a directory with the weights, the optimiser's tensors and a state in JSON.

A checkpoint is written beside its place and renamed when it is whole, and every file's checksum is in
its state, so what loads is what was saved. Nothing is ever unpickled.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from brctc.files import file_digest, json_digest, new_directory, remove_directory

FORMAT = "brctc checkpoint 1"
STATE, MODEL, OPTIMISER = "state.json", "model.safetensors", "optimiser.safetensors"
NAME = re.compile(r"stage-(\d+)-step-(\d+)")
Order = Literal["last", "best"]
"""Which checkpoints are kept and averaged."""
QUALITIES = (("dev_accuracy", 1), ("dev_error", -1), ("dev_loss", -1))
"""What tells how good a checkpoint is, the most telling first, and whether more is better."""


class CheckpointError(ValueError):
    """A checkpoint that is not whole, or not ours."""


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a training."""

    model: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    state: dict[str, Any]
    """What else continues the run: where it is in its stages, steps and data. Plain JSON."""


def checkpoint_path(directory: Path, stage: int, step: int) -> Path:
    """Where the checkpoint of a stage (from 0) after so many of its steps lies."""
    return directory / f"stage-{stage}-step-{step:07d}"


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes all of it or, on a full disk or a kill, nothing."""
    try:
        with new_directory(path) as unfinished:
            save_file(_plain(checkpoint.model), unfinished / MODEL)
            save_file(_plain(checkpoint.optimiser), unfinished / OPTIMISER)
            files = {name: file_digest(unfinished / name) for name in (MODEL, OPTIMISER)}
            content = {"format": FORMAT, "files": files, "state": checkpoint.state}
            content["digest"] = json_digest(content)
            (unfinished / STATE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"could not write the checkpoint {path}: {error}; earlier ones are untouched"
        ) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint; refuses what is not exactly what was saved."""
    content = _read_state(path)
    for name in (MODEL, OPTIMISER):
        if not (path / name).is_file():
            raise CheckpointError(f"the checkpoint {path} is incomplete: {name} is missing")
        if file_digest(path / name) != content["files"].get(name):
            raise CheckpointError(f"the checkpoint {path} is corrupt: {name} is not what was saved")
    return Checkpoint(load_file(path / MODEL), load_file(path / OPTIMISER), content["state"])


def load_state(path: Path) -> dict[str, Any]:
    """A checkpoint's state alone."""
    return _read_state(path)["state"]


def list_checkpoints(directory: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    numbered = [(NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    return [path for _, path in sorted(((int(m[1]), int(m[2])), path) for m, path in numbered if m)]


def latest_checkpoint(directory: Path) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint; None where there is none yet. A damaged one is refused."""
    paths = list_checkpoints(directory)
    return (paths[-1], load_checkpoint(paths[-1])) if paths else None


def set_aside_damaged(directory: Path) -> list[Path]:
    """Renames damaged checkpoints, and returns where they are; refused if there is no good one."""
    damaged: dict[Path, str] = {}
    paths = list_checkpoints(directory)
    for path in reversed(paths):
        try:
            load_checkpoint(path)
        except CheckpointError as error:
            damaged[path] = str(error)
    if damaged and len(damaged) == len(paths):
        raise CheckpointError("no checkpoint can be used: " + "; ".join(damaged.values()))
    return [path.rename(path.with_name(f"damaged-{path.name}")) for path in damaged]


def prune_checkpoints(directory: Path, keep: int, order: Order = "last") -> None:
    """Removes all but `keep` regular checkpoints, the last or the best ones, and the newest of all.

    Irregular ones were written on a signal: they let a run continue but are no part of an average.
    """
    paths = list_checkpoints(directory)
    kept = choose_checkpoints(paths, keep, order)
    for path in paths[:-1]:  # a run goes on from the newest, however good it is
        if path not in kept:
            remove_directory(path)


def choose_checkpoints(paths: Sequence[Path], count: int, order: Order) -> list[Path]:
    """So many regular checkpoints of `paths` (oldest first), in their order: the last or the best ones.

    Those of a later stage come before those of an earlier one, whatever was measured there, and of equally
    good ones the later.
    """
    states = {path: load_state(path) for path in paths}
    regular = [path for path in paths if states[path]["regular"]]
    ranked = regular
    if order == "best":
        ranked = sorted(regular, key=lambda path: (states[path]["stage"], _quality(path, states[path])))
    chosen = ranked[-count:]
    return [path for path in regular if path in chosen]


def _quality(path: Path, state: Mapping[str, Any]) -> float:
    """The higher, the better: the first of QUALITIES that was measured."""
    measured = state.get("dev", {})
    for name, sign in QUALITIES:
        if name in measured:
            return sign * measured[name]
    raise CheckpointError(f"{path} was written without a look at the development set: how good is it?")


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the checkpoints' weights, summed in double precision; integers are the newest's."""
    if not paths:
        raise ValueError("there are no checkpoints to average")
    newest = load_checkpoint(paths[-1]).model
    total = {name: tensor.double() for name, tensor in newest.items() if tensor.is_floating_point()}
    for path in paths[:-1]:
        model = load_checkpoint(path).model
        if model.keys() != newest.keys():
            name = sorted(model.keys() ^ newest.keys())[0]
            raise CheckpointError(f"{path} cannot be averaged with {paths[-1]}: {name} is in one only")
        for name in total:
            total[name] += model[name]
    return newest | {name: (tensor / len(paths)).to(newest[name].dtype) for name, tensor in total.items()}


def optimiser_tensors(optimiser: torch.optim.Optimizer, names: Sequence[str]) -> dict[str, Tensor]:
    """The optimiser's state as named tensors; names are those of its parameters, in their order."""
    state = optimiser.state_dict()["state"]
    return {
        f"{names[index]}/{key}": torch.as_tensor(value)
        for index, entries in state.items()
        for key, value in entries.items()
    }


def load_optimiser(
    optimiser: torch.optim.Optimizer, names: Sequence[str], tensors: dict[str, Tensor]
) -> None:
    """Puts back what `optimiser_tensors` gave."""
    index = {name: i for i, name in enumerate(names)}
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        state.setdefault(index[name], {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor by itself and without gaps: safetensors takes no views of one another."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def _read_state(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}")
    if not (path / STATE).is_file():
        found = ", ".join(sorted(os.listdir(path))[:5]) or "nothing"
        raise CheckpointError(f"{path} is not a brctc checkpoint: it has no {STATE} (found: {found})")
    try:
        content = json.loads((path / STATE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"the checkpoint {path} is corrupt: {STATE} cannot be read ({error})"
        ) from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version: {STATE} says {found!r}, not {FORMAT!r}"
        )
    digest = content.pop("digest", None)
    if digest != json_digest(content):
        raise CheckpointError(f"the checkpoint {path} is corrupt: {STATE} is not what was saved")
    return content
