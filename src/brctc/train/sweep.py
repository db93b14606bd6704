"""Sweeps: one online recipe, trained with several sizes of chunks and in several ways."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError, model_validator

from brctc.data import Config
from brctc.models import EmformerConfig
from brctc.train.config import KeyedError, NotNegative, Positive, Recipe
from brctc.train.recipe import RecipeError, load_recipe, read_yaml

START = "start"  # the run that cells are fine-tuned from

Changes = dict[str, Any]
"""Values of a recipe by their dotted keys, as `load_recipe` takes them."""


class Block(Config):
    """Cells: all chunks with all right contexts, in all ways."""

    chunks_ms: Annotated[tuple[Positive, ...], Field(min_length=1)]
    right_contexts: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0.5,)
    """As shares of the chunk: 0.5 is the paper's 2:1, 1 its 1:1."""
    methods: Annotated[tuple[str, ...], Field(min_length=1)]


class Sweep(Config):
    """What is trained, as data."""

    recipe: str
    """An online one, as seen from the sweep's file."""
    tune: Changes | None = None
    """If there is something: the recipe is trained as it is, once, and every cell starts with that model and
    is trained with these changes. Otherwise every cell is trained from nothing."""
    methods: Annotated[dict[str, Changes], Field(min_length=1)]
    """What is different in each way of training; the first one is what others are compared with."""
    blocks: Annotated[tuple[Block, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _methods_are_known(self) -> "Sweep":
        for i, block in enumerate(self.blocks):
            for method in block.methods:
                if method not in self.methods:
                    known = ", ".join(self.methods)
                    raise KeyedError(f"blocks.{i}.methods", f"there is no method {method!r}, but {known}")
        return self


class Cell(NamedTuple):
    """One training of a sweep; its name is that of its run."""

    name: str
    method: str
    chunk_ms: float
    right_context_ms: float
    recipe: Recipe


class Plan(NamedTuple):
    """All trainings of a sweep."""

    start: Recipe | None
    """Is trained first, in the folder `START`."""
    cells: tuple[Cell, ...]
    """Methods in the sweep's order, small chunks first."""


def load_sweep(path: str | Path, out: str | Path, overrides: Mapping[str, Any] | None = None) -> Plan:
    """The trainings of a sweep in the directory `out`; overrides are for the recipes of all of them.

    Every recipe is checked here, before anything is trained.
    """
    path, given = Path(path), dict(overrides or {})
    sweep = _read_sweep(path)
    base = load_recipe(path.parent / sweep.recipe, given)
    if not isinstance(base.model.encoder, EmformerConfig):
        raise RecipeError(f"{path}: recipe: {sweep.recipe} is not online: its encoder is no emformer")
    frame_ms = base.model.encoder.subsampling * base.frame_shift_ms
    tuned = {} if sweep.tune is None else {**sweep.tune, "start": str(Path(out) / START)}

    def cell(method: str, chunk_ms: float, right_ms: float) -> Cell:
        frames = [_frames(path, ms, frame_ms) for ms in (chunk_ms, right_ms)]
        sizes = dict(zip(("chunk_frames", "right_context_frames"), frames, strict=True))
        changes = {f"model.encoder.{name}": size for name, size in sizes.items()}
        recipe = load_recipe(
            path.parent / sweep.recipe, {**tuned, **sweep.methods[method], **given, **changes}
        )
        return Cell(f"{method}-{chunk_ms:g}+{right_ms:g}", method, chunk_ms, right_ms, recipe)

    wanted = {
        (list(sweep.methods).index(method), chunk_ms, share * chunk_ms)
        for block in sweep.blocks
        for method, chunk_ms, share in product(block.methods, block.chunks_ms, block.right_contexts)
    }
    cells = [cell(list(sweep.methods)[i], chunk_ms, right_ms) for i, chunk_ms, right_ms in sorted(wanted)]
    return Plan(None if sweep.tune is None else base, tuple(cells))


def _read_sweep(path: Path) -> Sweep:
    try:
        return Sweep.model_validate(read_yaml(path))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        cause = problem.get("ctx", {}).get("error")
        key = cause.key if isinstance(cause, KeyedError) else ".".join(map(str, problem["loc"]))
        raise RecipeError(f"{path}: {key}: {cause or problem['msg']}") from None


def _frames(path: Path, ms: float, frame_ms: float) -> int:
    frames = round(ms / frame_ms)
    if abs(frames * frame_ms - ms) > 1e-6:
        raise RecipeError(f"{path}: blocks: {ms:g} ms is no whole number of frames of {frame_ms:g} ms")
    return frames
