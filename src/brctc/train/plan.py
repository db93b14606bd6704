"""How long a training is and what its batches look like: counted in a prepared corpus, or assumed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from brctc.data import Prepared, Tokenizer
from brctc.data.batch import SOURCE
from brctc.data.corpora.base import TrainSize
from brctc.data.loading import num_frames, text_of
from brctc.data.sampling import BatchStream, Position, derive_seed
from brctc.data.split import splits_in
from brctc.data.text_checks import checked_labels
from brctc.models import load_model
from brctc.runs import model_directory
from brctc.train.config import Recipe, Stage
from brctc.train.corpus import (
    batches_of_stage,
    check_curriculum,
    check_texts,
    first_tokenizers,
    is_prepared,
    length_checks,
    open_corpus,
)
from brctc.train.recipe import RecipeError
from brctc.train.step_cost import BatchShape, Sizes

LOOKED_AT = 64
"""Batches whose shapes are usual."""
COUNTED_EXAMPLES = 400_000
"""Examples of all epochs of a stage up to which its steps are counted one by one: some seconds."""
UTTERANCE_S, LABELS_PER_SECOND, TOKENS_OF_A_TEXT = 10.0, 4.0, 25
"""Assumed where nothing is known: read speech; characters of Mandarin or pieces of BPE; a line of IWSLT14."""
VOCABULARY = {"char": 100, "word": 10_000}
"""Assumed likewise."""


@dataclass(frozen=True)
class Steps:
    """How long a stage is."""

    steps: int
    epochs: float | None
    """None where nobody knows how large the corpus is."""
    exact: bool


@dataclass(frozen=True)
class DataPlan:
    """What is known of the data before anything is trained."""

    sizes: Sizes
    shapes: tuple[BatchShape, ...]
    """Of whole batches that stand for all, from small to large; the last one is the largest."""
    stages: dict[str, Steps]
    seconds: float | None
    """Of an epoch, at all speeds; None for texts."""
    examples: int | None
    """Of an epoch."""
    notes: tuple[str, ...]
    """What was assumed, and what was found in the texts."""


def plan_data(recipe: Recipe, hours: float | None = None, pairs: int | None = None) -> DataPlan:
    """Reads the prepared corpus, and writes nothing; without one, assumes what it says in its notes.

    `hours` of speech or `pairs` of texts are the size of a corpus that is not prepared.
    """
    given = next((f"--{n} {v:g}" for n, v in (("hours", hours), ("pairs", pairs)) if v is not None), None)
    wrong = hours if recipe.corpus.input == "text" else pairs
    if wrong is not None:
        measure = "--pairs" if recipe.corpus.input == "text" else "--hours"
        raise ValueError(f"{given}: the size of {recipe.corpus.kind} is given by {measure}")
    if given is not None and not 0 < (hours or pairs or 0) < math.inf:
        raise ValueError(f"{given}: expected more than nothing")
    directory = Path(recipe.corpus.prepared)
    if not {"train", "dev"} <= {*splits_in(directory)} or not is_prepared(recipe):
        return _assume(recipe, hours, pairs)
    if given is not None:
        raise ValueError(f"{given}: {directory} is prepared, its own size counts")
    return _count(recipe)


def _count(recipe: Recipe) -> DataPlan:
    train, dev = open_corpus(recipe)
    tokenizers = first_tokenizers(recipe, train)
    found = [check_texts(recipe, split, tokenizers, store=False) for split in (train, dev)]
    text = train.storage.kind == "text"
    sizes = Sizes(
        tokenizers[SOURCE].size if text else train.feature_dim,
        {name: tokenizer.size for name, tokenizer in tokenizers.items()},
    )
    speeds = train.storage.speeds if train.storage.kind == "audio" else (1.0,)
    stages = {}
    for i, (name, stage) in enumerate(recipe.stages.items()):
        if stage.curriculum is not None:
            labels = checked_labels(train, length_checks(recipe, tokenizers)[0], store=False)
            check_curriculum(recipe, stage, labels)
        stream = batches_of_stage(recipe, i, train, tokenizers)
        stages[name] = _count_steps(stage, stream, len(train) * len(speeds))
    return DataPlan(
        sizes,
        _usual(_shapes(recipe, train, tokenizers)),
        stages,
        None if text else train.duration_s * sum(1 / speed for speed in speeds),
        len(train) * len(speeds),
        tuple(note for notes in found for note in notes),
    )


def _count_steps(stage: Stage, stream: BatchStream, examples: int) -> Steps:
    of_epoch = stream.steps_of(1)
    if stage.steps is not None:
        return Steps(stage.steps, stage.steps / of_epoch, exact=True)
    epochs = stage.epochs or 0
    if examples * epochs > COUNTED_EXAMPLES:
        return Steps(stream.steps_of(epochs), epochs, exact=False)
    ends = (planned.after for planned in stream.after(Position()))
    return Steps(next(end.step for end in ends if end.epoch >= epochs), epochs, exact=True)


def _shapes(recipe: Recipe, train: Prepared, tokenizers: Mapping[str, Tokenizer]) -> list[BatchShape]:
    """Of the first batches."""
    seed = derive_seed(recipe.seed, "data", 0)
    stream = BatchStream(train, recipe.batch, seed=seed, tokenizer=tokenizers.get(SOURCE))
    shapes, position = [], Position()
    for planned in islice(stream.after(position), LOOKED_AT):
        if shapes and planned.after.epoch > 1:
            break
        labels = {
            name: max(len(tokenizer.encode(text_of(cut, name))) for cut in planned.cuts)
            for name, tokenizer in tokenizers.items()
        }
        shapes.append(BatchShape(len(planned.cuts), max(map(num_frames, planned.cuts)), labels))
    return shapes


def _usual(shapes: Sequence[BatchShape]) -> tuple[BatchShape, ...]:
    """One of each third by size, and the largest."""
    ordered = sorted(shapes, key=lambda shape: shape.size)
    return (*(ordered[len(ordered) * i // 6] for i in (1, 3, 5)), ordered[-1])


def assume_batch(recipe: Recipe) -> tuple[Sizes, BatchShape]:
    """A usual batch of the recipe's size, whether there are data or not."""
    known, notes = recipe.corpus.published_size(), list[str]()
    sizes = _sizes(recipe, known, notes)
    return sizes, _assumed_batch(recipe, known, sizes, notes)[0]


def _assume(recipe: Recipe, hours: float | None, pairs: int | None) -> DataPlan:
    notes = [f"{recipe.corpus.prepared} is not prepared: nothing was counted"]
    known = recipe.corpus.published_size()
    size = _size(recipe, known, hours, pairs)
    sizes = _sizes(recipe, known, notes)
    shape, seconds, of_epoch = _assumed_batch(recipe, size, sizes, notes)
    stages = {}
    for name, stage in recipe.stages.items():
        if of_epoch is None and stage.steps is None:
            option = "--pairs" if recipe.corpus.input == "text" else "--hours"
            raise RecipeError(
                f"stages.{name}.epochs: {recipe.corpus.prepared} is not prepared, so that nobody knows how "
                f"many steps an epoch has: prepare it, or give its size by {option}"
            )
        steps = stage.steps or (stage.epochs or 0) * (of_epoch or 0)
        stages[name] = Steps(steps, steps / of_epoch if of_epoch else None, exact=stage.steps is not None)
    speeds = len(recipe.corpus.storage("train", recipe.features).speeds)
    return DataPlan(sizes, (shape,), stages, seconds, size.examples * speeds if size else None, tuple(notes))


def _size(
    recipe: Recipe, known: TrainSize | None, hours: float | None, pairs: int | None
) -> TrainSize | None:
    if pairs is not None:
        return TrainSize(pairs)
    if hours is None:
        return known
    each_s = 3600 * known.hours / known.examples if known else UTTERANCE_S
    return TrainSize(max(1, round(3600 * hours / each_s)), hours)


def _sizes(recipe: Recipe, known: TrainSize | None, notes: list[str]) -> Sizes:
    if recipe.start is not None:
        model = load_model(model_directory(recipe.start))
        return Sizes(model.system.input_size, model.system.vocab_sizes)
    found = {}
    for text, config in recipe.tokens.items():
        own = recipe.tokens[config.same_as] if config.same_as else config
        published = known.characters if known is not None and own.kind == "char" else None
        found[text] = own.size or published or VOCABULARY[own.kind]
        if own.size is None:
            said = "as published" if published else "assumed"
            notes.append(f"tokens of {text}: {found[text]:,}, {said}")
    storage = recipe.corpus.storage("train", recipe.features)
    return Sizes(found[SOURCE] if storage.kind == "text" else storage.feature_dim, found)


def _assumed_batch(
    recipe: Recipe, size: TrainSize | None, sizes: Sizes, notes: list[str]
) -> tuple[BatchShape, float | None, int | None]:
    """Its shape, the seconds of an epoch, and how many batches that are."""
    if recipe.batch.tokens is not None:
        n = max(1, recipe.batch.tokens // TOKENS_OF_A_TEXT)
        notes.append(f"assumed: texts of {TOKENS_OF_A_TEXT} tokens")
        shape = BatchShape(n, TOKENS_OF_A_TEXT, dict.fromkeys(sizes.vocab_sizes, TOKENS_OF_A_TEXT))
        return shape, None, math.ceil(size.examples / n) if size else None
    assert recipe.batch.seconds is not None, "BatchConfig sees to it"
    each_s = 3600 * size.hours / size.examples if size and size.hours else UTTERANCE_S
    each_s = min(each_s, recipe.batch.seconds)
    labels = max(1, round(LABELS_PER_SECOND * each_s))
    notes.append(f"assumed: utterances of {each_s:.1f} s with {labels} labels")
    frames = round(1000 * each_s / recipe.frame_shift_ms)
    n = max(1, int(recipe.batch.seconds / each_s))
    shape = BatchShape(n, frames, dict.fromkeys(sizes.vocab_sizes, labels))
    if size is None or not size.hours:
        return shape, None, None
    speeds = recipe.corpus.storage("train", recipe.features).speeds
    seconds = 3600 * size.hours * sum(1 / speed for speed in speeds)
    return shape, seconds, math.ceil(seconds / recipe.batch.seconds)
