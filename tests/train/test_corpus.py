"""From a recipe to prepared splits: a user's own manifests, and what does not fit together."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from brctc.cli.comparison import prepare_corpus_of
from brctc.data import (
    FeatureConfig,
    PreparationError,
    Prepared,
    Row,
    RowSource,
    Storage,
    prepare_split,
    write_manifest,
)
from brctc.models import load_model
from brctc.train import RecipeError, train
from brctc.train.corpus import ensure_prepared, is_prepared, open_corpus
from tests.data.sounds import noise, write
from tests.data.splits import write_split
from tests.train.tiny import ENCODER, PLAIN, TRANSDUCER, decoder_loss, tiny_recipe


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
    corpus = {"kind": "manifests", "manifests": manifests, "speeds": [1.0, 1.1]}
    corpus["prepared"] = str(folder / "prepared")
    sections = {
        "corpus": corpus,
        "features": {"num_bins": 40},
        "tokens": {"transcript": {"kind": "word"}},
        "model": {"encoder": ENCODER | {"subsampling": 4}},
        "stages": {"only": {"steps": 3, "losses": PLAIN}},
    }
    return tiny_recipe(folder, **sections | changes)


def test_own_manifests(manifests, tmp_path):
    recipe = recipe_of(manifests, tmp_path)
    model = load_model(train(recipe, tmp_path / "run", progress=False))
    assert model.features == recipe.features
    assert model.tokenizer.pieces[2:] == ["no", "yes"]
    train_split, dev_split = open_corpus(recipe)
    assert [u.id for u in train_split.examples][:2] == ["train-0", "train-0_sp1.1"]
    assert [u.id for u in dev_split.examples] == ["dev-0", "dev-1"]


def test_bad_rows_are_left_out_if_that_is_wanted(manifests, tmp_path):
    bad = Path(manifests["train"]).with_name("bad.tsv")
    header, *rows = Path(manifests["train"]).read_text().splitlines()
    number = header.split("\t").index("duration")
    cells = rows[0].split("\t")
    cells[number] = "abc"
    bad.write_text("\n".join([header, "\t".join(cells), *rows[1:], ""]))
    corpus = {"kind": "manifests", "manifests": manifests | {"train": str(bad)}}
    corpus["prepared"] = str(tmp_path / "prepared")
    with pytest.raises(PreparationError, match="duration is 'abc'"):
        ensure_prepared(recipe_of(manifests, tmp_path, corpus=corpus))
    ensure_prepared(recipe_of(manifests, tmp_path, corpus=corpus | {"skip_bad": True}))
    train_split = Prepared(tmp_path / "prepared", "train")
    assert len({u.id.partition("_")[0] for u in train_split.examples}) == 5


def prepare_by_hand(manifests, folder):
    """As `brctc prepare` does."""
    features = FeatureConfig(num_bins=40)
    for split, manifest in manifests.items():
        speeds = (1.0, 1.1) if split == "train" else (1.0,)
        prepare_split(RowSource(manifest), folder, split, Storage.of_audio(features, "features", speeds))


def test_other_features_are_refused(manifests, tmp_path):
    ensure_prepared(recipe_of(manifests, tmp_path))
    with pytest.raises(RecipeError, match=r"prepared with features.num_bins 40, the recipe says 80"):
        is_prepared(recipe_of(manifests, tmp_path, features={}))
    prepare_by_hand(manifests, tmp_path / "by-hand")
    corpus = {"kind": "manifests", "manifests": manifests, "prepared": str(tmp_path / "by-hand")}
    assert is_prepared(recipe_of(manifests, tmp_path, corpus=corpus))
    with pytest.raises(RecipeError, match=r"has features of .*num_bins=40.* asks for .*num_bins=80"):
        open_corpus(recipe_of(manifests, tmp_path, corpus=corpus, features={}))


def test_a_preparation_that_was_cut_off_is_done_again(manifests, tmp_path):
    recipe = recipe_of(manifests, tmp_path)
    assert not is_prepared(recipe)
    ensure_prepared(recipe)
    assert is_prepared(recipe)
    (tmp_path / "prepared" / "dev.json").unlink()
    assert not is_prepared(recipe)
    train(recipe, tmp_path / "run", progress=False)
    assert is_prepared(recipe)


def test_splits_that_are_there_are_kept(manifests, tmp_path):
    recipe = recipe_of(manifests, tmp_path)
    ensure_prepared(recipe)
    (tmp_path / "prepared" / "dev.json").unlink()
    before = (tmp_path / "prepared" / "train.json").stat().st_mtime_ns
    ensure_prepared(recipe)
    assert (tmp_path / "prepared" / "train.json").stat().st_mtime_ns == before


def test_splits_that_were_prepared_by_hand_are_not_mixed(manifests, tmp_path):
    prepare_by_hand({"train": manifests["train"]}, tmp_path / "prepared")
    before = (tmp_path / "prepared" / "train.json").stat().st_mtime_ns
    with pytest.raises(RecipeError, match=r"has no dev, and what it has \(train\) was prepared by hand"):
        train(recipe_of(manifests, tmp_path), tmp_path / "run", progress=False)
    assert (tmp_path / "prepared" / "train.json").stat().st_mtime_ns == before


def test_a_manifest_that_has_changed_is_noticed(manifests, tmp_path):
    paths = {split: str(shutil.copy(path, tmp_path)) for split, path in manifests.items()}
    for path in paths.values():
        text = (
            Path(path)
            .read_text()
            .replace("\t" + "train-", "\t" + str(Path(manifests["train"]).parent / "train-"))
        )
        text = text.replace("\tdev-", "\t" + str(Path(manifests["dev"]).parent / "dev-"))
        Path(path).write_text(text)
    recipe = recipe_of(paths, tmp_path)
    ensure_prepared(recipe)
    assert is_prepared(recipe)
    lines = Path(paths["dev"]).read_text().splitlines(keepends=True)
    Path(paths["dev"]).write_text("".join(lines[:-1]))
    with pytest.raises(RecipeError, match=r"the source of .* \(dev\) has changed since it was prepared"):
        is_prepared(recipe)
    assert is_prepared(recipe, as_before=True)
    Path(paths["dev"]).unlink()  # prepared elsewhere
    assert is_prepared(recipe)


def test_audio_that_was_replaced_is_noticed(tmp_path):
    """Also by audio of the same length; what is not there any more has not changed."""
    paths = {}
    for split in ("train", "dev"):
        rows = [
            Row(f"{split}{n}", "a b", write(tmp_path / "audio" / f"{split}{n}.wav", noise(0.5, n)), 0.5)
            for n in range(4)
        ]
        write_manifest(tmp_path / f"{split}.tsv", rows)
        paths[split] = str(tmp_path / f"{split}.tsv")
    recipe = recipe_of(paths, tmp_path)
    ensure_prepared(recipe)
    assert is_prepared(recipe)
    write(tmp_path / "audio" / "dev2.wav", noise(0.5, 99))
    with pytest.raises(RecipeError, match=r"the audio of .* \(dev\) has changed since it was prepared"):
        is_prepared(recipe)
    assert is_prepared(recipe, as_before=True)
    shutil.rmtree(tmp_path / "audio")
    assert is_prepared(recipe)


def write_silence(folder, split, utterances):
    """Ids with texts and frames."""
    features = FeatureConfig(num_bins=40)
    content = {id: (text, np.zeros((frames, 40), np.float32), None) for id, text, frames in utterances}
    write_split(folder, split, content, feature_config=features)


def test_texts_are_checked_with_the_tokenizer_of_the_run(manifests, tmp_path):
    recipe = recipe_of(manifests, tmp_path, tokens={"transcript": {"kind": "char"}})
    train_run = train(recipe, tmp_path / "run", progress=False).parent
    upper = [(f"u{i}", "YES NO", 100) for i in range(4)]
    other = recipe_of(
        manifests,
        tmp_path,
        tokens={"transcript": {"kind": "char"}},
        corpus={"kind": "manifests", "manifests": manifests, "prepared": str(tmp_path / "upper")},
        start=str(train_run),
        stages={"only": {"steps": 3, "losses": PLAIN, "inherit": "whole"}},
    )
    for split in ("train", "dev"):
        write_silence(tmp_path / "upper", split, upper)
    with pytest.raises(
        RecipeError, match=r"83.3% of the labels of 'train' are not in the vocabulary .* as in u0"
    ):
        train(other, tmp_path / "shouting", progress=False)
    write_silence(
        tmp_path / "upper", "train", [*[(f"u{i}", "yes no", 100) for i in range(4)], ("u4", "no yes", 20)]
    )
    with pytest.raises(
        RecipeError, match=r"upper \(train\):\n  u4: the transcript is too long: its 6 tokens"
    ):
        train(other, tmp_path / "shouting", progress=False)
    write_silence(tmp_path / "upper", "train", [(f"u{i}", "yes no", 100) for i in range(4)])
    write_silence(tmp_path / "upper", "dev", [("d0", "yes Ono", 100)])
    train(other, tmp_path / "shouting", progress=False)
    log = (tmp_path / "shouting" / "train.log").read_text()
    assert "14.3% of the labels of 'dev' are not in the vocabulary" in log


def test_a_run_goes_on_with_its_own_data(manifests, tmp_path):
    recipe = recipe_of(manifests, tmp_path)
    run_dir = train(recipe, tmp_path / "run", progress=False).parent
    (run_dir / "model" / "model.json").unlink()  # as if killed before the very end
    shutil.rmtree(tmp_path / "prepared")
    write_silence(tmp_path / "prepared", "train", [("other", "yes", 100)])
    write_silence(tmp_path / "prepared", "dev", [("other", "yes", 100)])
    with pytest.raises(
        RecipeError, match=r"run was begun with another split 'train' than .*prepared has now"
    ):
        train(recipe, run_dir, resume=True, progress=False)
    shutil.rmtree(tmp_path / "prepared")
    train(recipe, run_dir, resume=True, progress=False)
    assert (run_dir / "model" / "model.json").exists()


def test_what_has_become_of_the_manifests_does_not_stop_a_run(manifests, tmp_path):
    path = Path(shutil.copy(manifests["train"], Path(manifests["train"]).with_name("changing.tsv")))
    recipe = recipe_of({**manifests, "train": str(path)}, tmp_path)
    run_dir = train(recipe, tmp_path / "run", progress=False).parent
    (run_dir / "model" / "model.json").unlink()  # as if killed before the very end
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header}\tmood", *(f"{row}\tgood" for row in rows), ""]))
    assert is_prepared(recipe)  # nobody reads moods
    path.write_text("\n".join([header, *rows[1:], ""]))
    train(recipe, run_dir, resume=True, progress=False)
    assert (run_dir / "model" / "model.json").exists()
    for again in (
        partial(train, recipe, tmp_path / "new", progress=False),
        partial(prepare_corpus_of, recipe),
    ):
        with pytest.raises(RecipeError, match=r"the source of .* \(train\) has changed since"):
            again()


def test_labels_beyond_frames_are_no_matter_without_ctc(tmp_path):
    recipe = tiny_recipe(
        tmp_path,
        corpus={
            "kind": "manifests",
            "manifests": {"train": "t.tsv", "dev": "d.tsv"},
            "prepared": str(tmp_path / "prepared"),
        },
        features={"num_bins": 40},
        model={"encoder": ENCODER | {"subsampling": 2}, "decoders": {"transducer": TRANSDUCER}},
        stages={"only": {"steps": 2, "losses": {"said": decoder_loss("transducer")}}},
        augment={},
        decode={"method": "transducer"},
    )
    for split in ("train", "dev"):
        write_silence(tmp_path / "prepared", split, [("many", "1223344", 12), ("few", "12", 40)])
    train(recipe, tmp_path / "run", progress=False)
    write_silence(tmp_path / "prepared", "train", [("nothing", "12", 1), ("few", "12", 40)])
    with pytest.raises(RecipeError, match=r"nothing: the audio is too short: 2x subsampling leaves nothing"):
        train(recipe, tmp_path / "short", progress=False)


def test_other_files_are_no_splits(manifests, tmp_path):
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "notes.json").write_text("{}")
    ensure_prepared(recipe_of(manifests, tmp_path))
    assert is_prepared(recipe_of(manifests, tmp_path))


def test_a_run_that_failed_before_its_first_checkpoint_is_none(manifests, tmp_path):
    with pytest.raises(ValueError, match=r"a batch holds 0.1 s"):
        train(recipe_of(manifests, tmp_path, batch={"seconds": 0.1}), tmp_path / "run", progress=False)
    train(recipe_of(manifests, tmp_path), tmp_path / "run", progress=False)
