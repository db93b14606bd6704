"""From a recipe to prepared splits: a user's own manifests, and what does not fit together."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from brctc.data import PreparationError, Prepared, Row, write_manifest
from brctc.models import load_model
from brctc.train import RecipeError, train
from brctc.train.corpus import is_prepared, open_corpus, prepare_recipe
from tests.train.tiny import ENCODER, tiny_recipe


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    """Noise with a transcript, at half the recipe's sample rate."""
    folder = tmp_path_factory.mktemp("audio")
    random = np.random.default_rng(0)
    paths = {}
    for split, count in (("train", 6), ("dev", 2)):
        rows = []
        for i in range(count):
            path = folder / f"{split}-{i}.wav"
            soundfile.write(path, 0.1 * random.standard_normal(4000 + 500 * i), 8000)
            rows.append(Row(path.stem, "no yes" if i % 2 else "yes", path, (4000 + 500 * i) / 8000))
        paths[split] = str(folder / f"{split}.tsv")
        write_manifest(paths[split], rows)
    return paths


def recipe_of(manifests, folder, **changes):
    corpus = {"manifests": manifests, "options": {"speeds": [1.0, 1.1]}, "prepared": str(folder / "prepared")}
    sections = {
        "corpus": corpus,
        "features": {"num_bins": 40},
        "tokens": {"kind": "word"},
        "model": {"encoder": ENCODER | {"subsampling": 4}},
        "stages": {"only": {"steps": 3, "weights": {"ctc": 1}}},
    }
    return tiny_recipe(folder, **sections | changes)


def test_own_manifests(manifests, tmp_path):
    recipe = recipe_of(manifests, tmp_path)
    model = load_model(train(recipe, tmp_path / "run", progress=False))
    assert model.features == recipe.features
    assert model.tokenizer.pieces[2:] == ["no", "yes"]
    train_split, dev_split = open_corpus(recipe)
    assert [u.id for u in train_split.utterances][:2] == ["train-0", "train-0_sp1.1"]
    assert [u.id for u in dev_split.utterances] == ["dev-0", "dev-1"]


def test_bad_rows_are_left_out_if_that_is_wanted(manifests, tmp_path):
    bad = Path(manifests["train"]).with_name("bad.tsv")
    header, *rows = Path(manifests["train"]).read_text().splitlines()
    number = header.split("\t").index("duration")
    cells = rows[0].split("\t")
    cells[number] = "abc"
    bad.write_text("\n".join([header, "\t".join(cells), *rows[1:], ""]))
    corpus = {"manifests": manifests | {"train": str(bad)}, "prepared": str(tmp_path / "prepared")}
    with pytest.raises(PreparationError, match="duration is 'abc'"):
        prepare_recipe(recipe_of(manifests, tmp_path, corpus=corpus))
    prepare_recipe(recipe_of(manifests, tmp_path, corpus=corpus | {"options": {"skip_bad": True}}))
    train_split = Prepared(tmp_path / "prepared", "train")
    assert len({u.id.partition("_")[0] for u in train_split.utterances}) == 5


def test_other_features_are_refused(manifests, tmp_path):
    prepare_recipe(recipe_of(manifests, tmp_path))
    with pytest.raises(RecipeError, match=r"prepared with features.num_bins 40, the recipe says 80"):
        open_corpus(recipe_of(manifests, tmp_path, features={}))
    (tmp_path / "prepared" / "corpus.json").unlink()  # as `brctc prepare` leaves it
    with pytest.raises(RecipeError, match=r"has features of .*num_bins=40.* asks for .*num_bins=80"):
        open_corpus(recipe_of(manifests, tmp_path, features={}))


def test_a_preparation_that_was_cut_off_is_done_again(manifests, tmp_path):
    recipe = recipe_of(manifests, tmp_path)
    assert not is_prepared(recipe)
    prepare_recipe(recipe)
    assert is_prepared(recipe)
    (tmp_path / "prepared" / "dev.json").unlink()
    assert not is_prepared(recipe)
    train(recipe, tmp_path / "run", progress=False)
    assert is_prepared(recipe)
