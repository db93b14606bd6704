"""Sweeps: one online recipe, trained with several sizes of chunks and in several ways."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError, model_validator

from brctc.config import Config, KeyedError, NotNegative, Positive, describe_problems
from brctc.train.config import CTCConfig, Recipe
from brctc.train.recipe import RecipeError, differences, load_recipe, read_with_bases

SIZES: tuple[str, ...] = ("model.encoder.chunk_frames", "model.encoder.right_context_frames")

Changes = dict[str, Any]
"""Values of a recipe by their dotted keys, as `load_recipe` takes them."""


class Block(Config):
    """Cells: all chunks with all right contexts, in all ways."""

    chunks_ms: Annotated[tuple[Positive, ...], Field(min_length=1)]
    right_contexts: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0.5,)
    """As shares of the chunk: 0.5 is the paper's 2:1, 1 its 1:1."""
    methods: Annotated[tuple[str, ...], Field(min_length=1)]


class Method(Config):
    """A way of training."""

    start: str | None = None
    """Which of the sweep's starts it is fine-tuned from; from nothing by default."""
    changes: Changes = Field(default_factory=dict)
    """What is different from the recipe."""


class Sweep(Config):
    """What is trained, as data."""

    recipe: str
    """An online one, as seen from the file that names it."""
    starts: dict[str, Changes] = Field(default_factory=dict)
    """Models that are trained first, by what is different in their recipes."""
    tune: Changes = Field(default_factory=dict)
    """What is different from the recipe when a start is fine-tuned."""
    methods: Annotated[dict[str, Method], Field(min_length=1)]
    """By name; the first one is what others are compared with."""
    blocks: Annotated[tuple[Block, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_known(self) -> "Sweep":
        for name, method in self.methods.items():
            if method.start is not None:
                _check_known(f"methods.{name}.start", "start", method.start, self.starts)
        for i, block in enumerate(self.blocks):
            for method in block.methods:
                _check_known(f"blocks.{i}.methods", "method", method, self.methods)
        return self


def _check_known(key: str, what: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        others = f", but {', '.join(known)}" if known else " or any other"
        raise KeyedError(key, f"there is no {what} {name!r}{others}")


class Cell(NamedTuple):
    """One training of a sweep; its name is that of its run."""

    name: str
    method: str
    chunk_ms: float
    right_context_ms: float
    recipe: Recipe


class Plan(NamedTuple):
    """All trainings of a sweep."""

    starts: dict[str, Recipe]
    """What cells are fine-tuned from, by the names of their runs."""
    cells: tuple[Cell, ...]
    """Methods in the sweep's order, small chunks first; all of one corpus and its features."""


def load_sweep(path: str | Path, out: str | Path, overrides: Mapping[str, Any] | None = None) -> Plan:
    """The trainings of a sweep in the directory `out`; overrides are for the recipes of all of them.

    Every recipe is checked here, before anything is trained.
    """
    path, given = Path(path), dict(overrides or {})
    for key in SIZES:
        if key in given:
            raise RecipeError(f"{key}: the sizes of chunks are those of the sweep, in its blocks")
    sweep = _read_sweep(path)
    # what is wrong with the recipe itself is no method's fault
    _frame_ms(load_recipe(sweep.recipe, given), f"{path}: recipe: {sweep.recipe}")

    def cell(name: str, chunk_ms: float, right_ms: float) -> Cell:
        method = sweep.methods[name]
        tuned = {**sweep.tune, "start": _start_run(out, method.start)} if method.start else {}
        source, layers = f"{path}: methods.{name}", (tuned, method.changes, given)
        frame_ms = _frame_ms(load_recipe(sweep.recipe, *layers, source=source), source)
        sizes = (_frames(f"{path}: blocks: {name}", ms, frame_ms) for ms in (chunk_ms, right_ms))
        recipe = load_recipe(sweep.recipe, *layers, dict(zip(SIZES, sizes, strict=True)), source=source)
        for term, loss in [*recipe.stages.values()][-1].losses.items():
            if isinstance(loss, CTCConfig) and loss.risk.moves_spikes:
                problem = f"{loss.risk.kind} has no latency: its spikes are not where the words are"
                raise RecipeError(f"{source}: losses.{term}.risk: {problem}")
        return Cell(f"{name}-{chunk_ms:g}+{right_ms:g}", name, chunk_ms, right_ms, recipe)

    wanted = {
        (list(sweep.methods).index(method), chunk_ms, share * chunk_ms)
        for block in sweep.blocks
        for method, chunk_ms, share in product(block.methods, block.chunks_ms, block.right_contexts)
    }
    cells = [cell(list(sweep.methods)[i], chunk_ms, right_ms) for i, chunk_ms, right_ms in sorted(wanted)]
    for other in cells[1:]:
        _check_same_corpus(path, cells[0], other)
    used = {cell.recipe.start for cell in cells}
    starts = {
        f"start-{name}": load_recipe(sweep.recipe, changes, given, source=f"{path}: starts.{name}")
        for name, changes in sweep.starts.items()
        if _start_run(out, name) in used
    }
    return Plan(starts, tuple(cells))


def _start_run(out: str | Path, name: str) -> str:
    return str(Path(out) / f"start-{name}")


def _read_sweep(path: Path) -> Sweep:
    content = read_with_bases(path, paths=("recipe",))
    if "stages" in content and "methods" not in content:
        raise RecipeError(f"{path} is a recipe, not a sweep: a sweep names a recipe, methods and blocks")
    try:
        return Sweep.model_validate(content)
    except ValidationError as error:
        raise RecipeError(describe_problems(error, Sweep, str(path))) from None


def _check_same_corpus(path: Path, first: Cell, other: Cell) -> None:
    """All cells are measured on one test set."""
    ours, theirs = (
        cell.recipe.model_dump(mode="json", include={"corpus", "features"}) for cell in (first, other)
    )
    for key, our, their in differences(ours, theirs):
        raise RecipeError(f"{path}: {key} is {their} in {other.name}, but {our} in {first.name}")


def _frame_ms(recipe: Recipe, source: str) -> float:
    """From one frame of the encoder to the next; one that takes no chunks is refused."""
    if not recipe.model.streaming:
        raise RecipeError(f"{source} needs a streaming encoder (kind: emformer)")
    return recipe.model.encoder.subsampling * recipe.frame_shift_ms


def _frames(source: str, ms: float, frame_ms: float) -> int:
    frames = round(ms / frame_ms)
    if abs(frames * frame_ms - ms) > 1e-6:
        raise RecipeError(f"{source}: {ms:g} ms is no whole number of frames of {frame_ms:g} ms")
    return frames
