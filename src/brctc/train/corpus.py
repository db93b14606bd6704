"""The prepared splits that a recipe trains on."""

import json
from pathlib import Path
from typing import Any

from brctc.data import CORPORA, Prepared, Tokenizer, prepare_manifest
from brctc.data.prepare import Progress, training_texts
from brctc.files import write_json
from brctc.train.config import ManifestOptions, Recipe
from brctc.train.recipe import RecipeError, differences

DESCRIPTION = "corpus.json"  # what the splits were made from


def open_corpus(recipe: Recipe) -> tuple[Prepared, Prepared]:
    """The prepared splits train and dev; refused if they were made from something else."""
    directory = Path(recipe.corpus.prepared)
    _check_origin(recipe, directory)
    train, dev = Prepared(directory, "train"), Prepared(directory, "dev")
    for split in (train, dev):
        if split.feature_config != recipe.features:
            raise RecipeError(
                f"corpus.prepared: {directory} has features of {split.feature_config}, "
                f"the recipe asks for {recipe.features}"
            )
    return train, dev


def is_prepared(recipe: Recipe) -> bool:
    """Whether all splits of the recipe's corpus are there."""
    directory = Path(recipe.corpus.prepared)
    splits = recipe.corpus.manifests or ("train", "dev", "test")
    return all((directory / f"{split}.json").exists() for split in splits)


def prepare_recipe(recipe: Recipe, progress: Progress | None = None) -> None:
    """Prepares the recipe's corpus where the recipe says."""
    corpus = recipe.corpus
    if corpus.name is not None:
        known = CORPORA[corpus.name]
        features = {} if recipe.features is None else {"features": recipe.features}
        known.prepare(corpus.prepared, known.config(**corpus.options, **features), progress)
    else:
        assert corpus.manifests is not None  # CorpusConfig sees to it
        chosen = ManifestOptions(**corpus.options)
        tokenizer = Tokenizer.train(training_texts(corpus.manifests["train"]), recipe.tokens)
        for split, manifest in corpus.manifests.items():
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
    write_json(Path(corpus.prepared) / DESCRIPTION, _origin(recipe))


def _origin(recipe: Recipe) -> dict[str, Any]:
    content = recipe.model_dump(mode="json")
    origin = {key: value for key, value in content["corpus"].items() if key != "prepared"}
    return origin | {"features": content["features"]}


def _check_origin(recipe: Recipe, directory: Path) -> None:
    """Splits from elsewhere (brctc prepare) say nothing of themselves: whoever names them knows them."""
    path = directory / DESCRIPTION
    if not path.exists():
        return
    found = next(differences(json.loads(path.read_text(encoding="utf-8")), _origin(recipe)), None)
    if found is not None:
        key, before, now = found
        raise RecipeError(
            f"corpus.prepared: {directory} was prepared with {key} {before!r}, the recipe says {now!r}: "
            "name another directory or remove this one"
        )
