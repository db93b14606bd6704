"""The prepared splits that a recipe trains on."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from brctc.data import PreparationError, Prepared, RowSource, Source, Tokenizer, prepare_corpus
from brctc.data.batch import SOURCE
from brctc.data.checks import LabelCounts, LengthCheck, TooLong, check_file_of
from brctc.data.loading import text_of
from brctc.data.manifest import Row
from brctc.data.prepare import files_digest
from brctc.data.prepare_corpus import SplitProgress, origin_of
from brctc.data.sampling import BatchStream, Cut, derive_seed
from brctc.data.source import CheckedSource
from brctc.data.split import splits_in
from brctc.data.text_checks import checked_labels
from brctc.files import locked
from brctc.models import load_model
from brctc.runs import model_directory
from brctc.train.config import Recipe, Stage
from brctc.train.recipe import RecipeError, differences

MOST_NAMED = 5
MOST_UNKNOWN = 0.5


def open_corpus(recipe: Recipe) -> tuple[Prepared, Prepared]:
    """The prepared splits train and dev; refused if their features are others than the recipe's."""
    directory = Path(recipe.corpus.prepared)
    train, dev = Prepared(directory, "train"), Prepared(directory, "dev")
    for split in (train, dev):
        if split.feature_config != recipe.features:
            raise RecipeError(
                f"corpus.prepared: {directory} has features of {split.feature_config}, "
                f"the recipe asks for {recipe.features}"
            )
    return train, dev


class HasTexts(Protocol):
    """An example, or a row of a manifest."""

    @property
    def id(self) -> str: ...

    @property
    def texts(self) -> Mapping[str, str]: ...


def make_tokenizers(recipe: Recipe, read: Callable[[], Iterable[HasTexts]]) -> dict[str, Tokenizer]:
    """The tokenizer of each text, made from what `read` gives; texts that share one have the same."""
    made: dict[str, Tokenizer] = {}
    for name, config in recipe.tokens.items():
        if config.same_as is None:
            sharing = [name, *(other for other, c in recipe.tokens.items() if c.same_as == name)]
            made[name] = Tokenizer.train(_texts(read(), sharing), config)
    return {name: made[config.same_as or name] for name, config in recipe.tokens.items()}


def _texts(examples: Iterable[HasTexts], names: list[str]) -> Iterator[str]:
    for example in examples:
        for name in names:
            if name not in example.texts:
                raise RecipeError(
                    f"tokens.{name}: {example.id} has no {name}, but {', '.join(example.texts)}"
                )
            yield example.texts[name]


def first_tokenizers(recipe: Recipe, train: Prepared) -> Mapping[str, Tokenizer]:
    """Taken over from `start`, or made from the training texts, once; a resumed run has its own again."""
    if recipe.start is not None:
        return load_model(model_directory(recipe.start)).tokenizers
    return make_tokenizers(recipe, train.iterate)


def length_checks(recipe: Recipe, tokenizers: Mapping[str, Tokenizer]) -> list[LengthCheck]:
    """What every text must pass: one for each that CTC aligns, or for the output if there is no CTC."""
    encoder, output = recipe.model.encoder, recipe.model.output
    source = tokenizers[SOURCE] if encoder.input == "tokens" else None
    policies: dict[str, TooLong] = {}
    for loss in (loss for stage in recipe.stages.values() for loss in stage.losses.values()):
        if loss.ctc_text is not None and policies.get(loss.ctc_text) != "refused":
            policies[loss.ctc_text] = loss.too_long
    return [
        LengthCheck(tokenizers[text], encoder.subsampling, text, policy, encoder.up_sampling_factor, source)
        for text, policy in sorted((policies or {output: "ignored"}).items())
    ]


def check_texts(
    recipe: Recipe, split: Prepared, tokenizers: Mapping[str, Tokenizer], *, store: bool = True
) -> list[str]:
    """Refuses a split that is mostly unknown to a tokenizer, or whose texts are too long for its frames: a
    loss would only say that it is infinite. Returns what else is worth a note: what vocabularies lack, and
    texts that CTC skips. `store` keeps what was found beside the split."""
    notes = []
    for check in length_checks(recipe, tokenizers):
        try:
            labels = checked_labels(split, check, store=store)
        except PreparationError as error:
            named = [str(problem) for problem in error.problems[:MOST_NAMED]]
            left = len(error.problems) - MOST_NAMED
            more = [f"and {left} more"] if left > 0 else []
            found = "\n  ".join([*named, *more])
            raise RecipeError(f"corpus.prepared: {split.directory} ({split.split}):\n  {found}") from None
        if what := _lacking(split, tokenizers[check.text], labels):
            notes.append(what)
        if labels.too_long:
            notes.append(_skipped(split, check, labels))
    return notes


def _skipped(split: Prepared, check: LengthCheck, labels: LabelCounts) -> str:
    """The first ones; all are where the check is stored."""
    count, path = len(labels.too_long), check_file_of(split.directory, split.split, check)
    what = (
        f"CTC skips {count:,} of the {labels.texts:,} {check.text} texts of {split.split!r}, which have more "
        f"tokens than frames: {', '.join(labels.too_long[:MOST_NAMED])}"
    )
    return what if count <= MOST_NAMED else f"{what}, ...; all are in {path}"


def _lacking(split: Prepared, tokenizer: Tokenizer, labels: LabelCounts) -> str | None:
    if not labels.unknown:
        return None
    what = (
        f"{labels.unknown / max(1, labels.labels):.1%} of the labels of {split.split!r} are not in the "
        f"vocabulary ({tokenizer.size} {tokenizer.kind} tokens), as in {labels.example}"
    )
    if labels.unknown > MOST_UNKNOWN * labels.labels:
        raise RecipeError(f"corpus.prepared: {split.directory}: {what}: is it another language or case?")
    return what


def check_curriculum(recipe: Recipe, stage: Stage, labels: LabelCounts) -> None:
    """Refuses a curriculum that parts nothing."""
    if stage.curriculum is None:
        return
    most = stage.curriculum.max_labels
    if not labels.fewest <= most < labels.most:
        found = f"{labels.fewest} to {labels.most}"
        raise RecipeError(
            f"curriculum.max_labels is {most}: it must part the training texts, which have {found} labels"
        )


def batches_of_stage(
    recipe: Recipe, stage: int, train: Prepared, tokenizers: Mapping[str, Tokenizer]
) -> BatchStream:
    """What each step of a stage, by its number, is computed from."""
    output = recipe.model.output
    return BatchStream(
        train,
        recipe.batch,
        seed=derive_seed(recipe.seed, "data", stage),
        curriculum=list(recipe.stages.values())[stage].curriculum,
        count_labels=partial(_count_labels, text=output, tokenizer=tokenizers[output]),
        tokenizer=tokenizers.get(SOURCE),
    )


def _count_labels(cut: Cut, text: str, tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode(text_of(cut, text)))


def is_prepared(recipe: Recipe, *, as_before: bool = False) -> bool:
    """Whether all splits of the recipe's corpus are there, made as the recipe says.

    Splits that were made from something else, or from manifests or audio that has changed since, are refused;
    audio that is not there any more has not changed. Those
    of `brctc prepare` say nothing of themselves: whoever names them knows them. Of splits that are known
    to be `as_before`, it does not matter what has become of the manifests.
    """
    directory = Path(recipe.corpus.prepared)
    there = splits_in(directory)
    sources = {} if as_before else recipe.corpus.current_sources()
    by_hand = []
    for name in there:
        split = Prepared(directory, name)
        if split.origin is None:
            by_hand.append(name)
            continue
        _check_origin(recipe, split)
        if name in sources and (what := _changed(sources[name], split)):
            raise RecipeError(
                f"corpus.prepared: the {what} of {directory} ({name}) has changed since it was prepared: "
                "name another directory or remove this one"
            )
    if by_hand and {"train", "dev"} <= {*there}:
        return True
    missing = [split for split in recipe.corpus.split_names() if split not in there]
    if missing and by_hand:
        raise RecipeError(
            f"corpus.prepared: {directory} has no {' and '.join(missing)}, and what it has "
            f"({', '.join(by_hand)}) was prepared by hand: prepare the rest too, or name another directory"
        )
    return not missing


def _changed(source: CheckedSource, split: Prepared) -> str | None:
    """What of a source is not what the split was made from."""
    if source.digest() != split.source_digest:
        return "source"
    if split.files_digest in (None, files_digest(source, split.storage)) or source.lacks_files():
        return None
    return "audio"


def _check_origin(recipe: Recipe, split: Prepared) -> None:
    now = origin_of(recipe.corpus, recipe.features)
    found = next(differences(split.origin, now), None)
    if found is not None:
        key, old, new = found
        raise RecipeError(
            f"corpus.prepared: {split.directory} was prepared with {key} {old!r}, the recipe says {new!r}: "
            "name another directory or remove this one"
        )


def ensure_prepared(
    recipe: Recipe, progress: SplitProgress | None = None, *, jobs: int | None = 1, as_before: bool = False
) -> None:
    """Prepares the recipe's corpus unless it is there, as `is_prepared` says.

    Of trainings that begin at once, one prepares. The others take what it has made, even if they would have
    left other rows out: to prepare it again would take it away from the first.
    """
    if is_prepared(recipe, as_before=as_before):
        return
    directory = Path(recipe.corpus.prepared)
    with locked(directory / ".training-lock", f"another training prepares {directory}"):
        if not is_prepared(recipe, as_before=as_before):
            _prepare(recipe, progress, jobs)


def _prepare(recipe: Recipe, progress: SplitProgress | None, jobs: int | None) -> None:
    """What is there as it should be is kept."""
    sources = recipe.corpus.sources()
    prepare_corpus(
        recipe.corpus,
        recipe.features,
        check=_check_of_rows(recipe, sources["train"]),
        jobs=jobs,
        sources=sources,
        progress=progress,
    )


def _check_of_rows(recipe: Recipe, source: Source) -> LengthCheck | None:
    """Of a manifest, whose texts are there before its features: what does not fit is known at once."""
    if not isinstance(source, RowSource) or recipe.corpus.input != "audio":
        return None

    def rows() -> Iterator[Row]:
        return (item for item in source.items() if isinstance(item, Row) and item.text)

    if next(rows(), None) is None:
        return None
    return length_checks(recipe, make_tokenizers(recipe, rows))[0]
