"""The prepared splits that a recipe trains on."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from brctc.data import CORPORA, Prepared, Tokenizer, prepare_manifest
from brctc.data.manifest import manifest_digest
from brctc.data.prepare import Progress, length_problem, training_texts
from brctc.data.prepared import ORIGIN, splits_in
from brctc.data.tokens import UNKNOWN_ID
from brctc.files import write_json
from brctc.train.config import ManifestOptions, Recipe
from brctc.train.recipe import RecipeError, differences

DIGESTS = "manifest_digests"


def open_corpus(recipe: Recipe, *, as_before: bool = False) -> tuple[Prepared, Prepared]:
    """The prepared splits train and dev; refused if they were made from something else. Of splits that are
    known to be `as_before`, it does not matter what has become of the manifests."""
    directory = Path(recipe.corpus.prepared)
    check_origin(recipe, as_before)
    train, dev = Prepared(directory, "train"), Prepared(directory, "dev")
    for split in (train, dev):
        if split.feature_config != recipe.features:
            raise RecipeError(
                f"corpus.prepared: {directory} has features of {split.feature_config}, "
                f"the recipe asks for {recipe.features}"
            )
    return train, dev


MOST_NAMED = 5
MOST_UNKNOWN = 0.5


class Texts(NamedTuple):
    """What a tokenizer makes of a split."""

    num_labels: list[int]
    """Of every utterance."""
    lacking: str | None
    """What the vocabulary lacks, in words."""


def check_texts(
    split: Prepared, tokenizer: Tokenizer, subsampling: int | None = None, *, ctc: bool = True
) -> Texts:
    """Refuses a split that is mostly unknown to the tokenizer and, where it is known that an encoder leaves
    `subsampling` times fewer frames, one that has none left, or for CTC fewer than its labels need: it may
    have been checked with other tokens, and a loss would only say that it is infinite."""
    num_labels, unknown, example, problems = [], 0, "", []
    for utterance in split.utterances:
        ids = tokenizer.encode(utterance.text)
        num_labels.append(len(ids))
        if UNKNOWN_ID in ids:
            unknown += ids.count(UNKNOWN_ID)
            example = example or utterance.id
        if subsampling is not None:
            what = length_problem(ids if ctc else [], utterance.num_frames, tokenizer.kind, subsampling)
            problems += [f"{utterance.id}: {what}"] if what else []
    lacking = (
        f"{unknown / max(1, sum(num_labels)):.1%} of the labels of {split.split!r} are not in the vocabulary "
    )
    lacking += f"({tokenizer.size} {tokenizer.kind} tokens), as in {example}"
    if unknown > MOST_UNKNOWN * sum(num_labels):
        raise RecipeError(f"corpus.prepared: {split.directory}: {lacking}: is it another language or case?")
    if problems:
        more = [f"and {len(problems) - MOST_NAMED} more"] if len(problems) > MOST_NAMED else []
        found = "\n  ".join([*problems[:MOST_NAMED], *more])
        raise RecipeError(f"corpus.prepared: {split.directory} ({split.split}):\n  {found}")
    return Texts(num_labels, lacking if unknown else None)


def is_prepared(recipe: Recipe) -> bool:
    """Whether all splits of the recipe's corpus are there."""
    return not _missing(recipe)


def _missing(recipe: Recipe) -> list[str]:
    directory = Path(recipe.corpus.prepared)
    splits = recipe.corpus.manifests or ("train", "dev", "test")
    return [split for split in splits if not (directory / f"{split}.json").exists()]


def prepare_recipe(recipe: Recipe, progress: Progress | None = None) -> None:
    """Prepares the recipe's corpus where the recipe says. Splits of manifests that it has prepared before are
    kept; a corpus that comes with brctc is made as a whole."""
    corpus, missing = recipe.corpus, _missing(recipe)
    directory = Path(corpus.prepared)
    check_origin(recipe)
    there = splits_in(directory)
    if there and not (directory / ORIGIN).exists():
        raise RecipeError(
            f"corpus.prepared: {directory} has no {' and '.join(missing)}, and what it has "
            f"({', '.join(there)}) was prepared by hand: prepare the rest too, or name another directory"
        )
    write_json(directory / ORIGIN, _origin(recipe))  # first: a preparation that was stopped goes on
    if corpus.name is not None:
        known = CORPORA[corpus.name]
        features = {} if recipe.features is None else {"features": recipe.features}
        known.prepare(corpus.prepared, known.config(**corpus.options, **features), progress)
    else:
        assert corpus.manifests is not None  # CorpusConfig sees to it
        chosen = ManifestOptions(**corpus.options)
        tokenizer = Tokenizer.train(training_texts(corpus.manifests["train"]), recipe.tokens)
        for split, manifest in corpus.manifests.items():
            if split not in missing:
                continue
            prepare_manifest(
                manifest,
                corpus.prepared,
                split,
                recipe.features,
                tokens=tokenizer,
                subsampling=recipe.model.encoder.subsampling,
                speeds=chosen.speeds if split == "train" else (1.0,),
                skip_bad=chosen.skip_bad,
                progress=progress,
            )


def _origin(recipe: Recipe) -> dict[str, Any]:
    content = recipe.model_dump(mode="json")
    origin = {key: value for key, value in content["corpus"].items() if key != "prepared"}
    digests: dict[str, str] = {
        split: manifest_digest(manifest)
        for split, manifest in (recipe.corpus.manifests or {}).items()
        if Path(manifest).is_file()
    }
    return origin | {"features": content["features"], DIGESTS: digests}


def check_origin(recipe: Recipe, as_before: bool = False) -> None:
    """Refuses splits that were made from something else. Those from elsewhere (brctc prepare) say nothing of
    themselves: whoever names them knows them."""
    directory = Path(recipe.corpus.prepared)
    path, there = directory / ORIGIN, splits_in(directory)
    if not path.exists() or not there:
        return
    before, now = json.loads(path.read_text(encoding="utf-8")), _origin(recipe)
    # of manifests that are gone, or have not been prepared yet, nothing is known
    digests = before.pop(DIGESTS, {}), now.pop(DIGESTS)
    kept = set() if as_before else {*there} & digests[0].keys() & digests[1].keys()
    before[DIGESTS], now[DIGESTS] = ({split: found[split] for split in kept} for found in digests)
    found = next(differences(before, now), None)
    if found is None:
        return
    key, old, new = found
    what = f"with {key} {old!r}, the recipe says {new!r}"
    if key.startswith(DIGESTS):
        manifests: dict[Any, str] = {**(recipe.corpus.manifests or {})}
        what = f"from {manifests[key.rpartition('.')[2]]}, which has changed since"
    raise RecipeError(
        f"corpus.prepared: {directory} was prepared {what}: name another directory or remove this one"
    )
