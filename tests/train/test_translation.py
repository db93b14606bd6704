"""Systems of translation, trained for real, with everything small: from manifests to scores."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from brctc.data import Prepared, Row, write_manifest
from brctc.data.subsampling import subsampled_frames
from brctc.decode import Recognizer
from brctc.decode.methods import Search
from brctc.decode.pool import RecognizerPool
from brctc.evaluate import EvaluationOptions, evaluate_models
from brctc.evaluate.grid import search_grid
from brctc.evaluate.translation_metrics import BLEUMetric
from brctc.models import load_model
from brctc.train import RecipeError, train
from tests.train.tiny import ENCODER
from tests.train.translations import TEXT, mt_recipe, sentences, st_recipe

QUICK = EvaluationOptions(repeats=1, rtf_utterances=2, batch=3, sweep_utterances=1, beams=(2,))


@pytest.fixture(scope="module")
def mt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mt")
    train(mt_recipe(folder), folder / "run", progress=False)
    return folder


@pytest.fixture(scope="module")
def st(tmp_path_factory):
    folder = tmp_path_factory.mktemp("st")
    train(st_recipe(folder), folder / "run", progress=False)
    return folder


def test_text_translation_is_trained_and_measured(mt):
    model = load_model(mt / "run" / "model")
    assert model.trim is not None
    assert model.system.config.encoder.kind == "legonn"
    evaluation = evaluate_models({"mt": mt / "run" / "model"}, Prepared(mt / "prepared", "test"), QUICK)
    assert list(evaluation.metrics) == ["bleu", "chrf"]
    assert evaluation.time_per == "sentence"
    (system,) = evaluation.systems
    assert system.real_time.audio_s == 2  # sentences
    references = [english for _, english in sentences(8, 2)]
    frames = [3 * len(german.split()) for german, _ in sentences(8, 2)]
    oracle = sum(len(english.split()) for english in references) / sum(frames)
    assert system.down_sampling.oracle == pytest.approx(oracle)
    assert 0 < system.down_sampling.factor <= 1


def test_the_log_has_an_accuracy(mt):
    lines = [json.loads(line) for line in (mt / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [line["dev_accuracy"] for line in lines if "dev_accuracy" in line]
    assert len(found) == 5
    assert all(0 <= value <= 1 for value in found)


def test_the_log_says_what_trimming_would_keep(mt, st):
    """Also in the first stage, which does not trim yet: the CTC there is of the text that will decide."""
    for folder in (mt, st):
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        found = [line["dev_factor"] for line in lines if line["stage"] == "first" and "dev_factor" in line]
        assert found
        assert all(0 < value <= 1 for value in found)


def test_texts_are_sources(mt):
    recognizer = Recognizer.from_directory(mt / "run" / "model")
    rows = [Row("a", "eins zwei"), Row("b", "vier")]
    alone = [recognizer.recognize([row], beam=3, nbest=3)[0] for row in rows]
    together = recognizer.recognize(rows, beam=3, nbest=3, batch_size=2)
    for one, other in zip(alone, together, strict=True):
        assert (one.id, one.text, one.tokens) == (other.id, other.text, other.tokens)
        assert one.duration_s is None
        assert [found.text for found in one.nbest] == [found.text for found in other.nbest]
        assert one.nbest[0].text == one.text
        assert [found.score for found in one.nbest] == sorted((f.score for f in one.nbest), reverse=True)
    assert set(one.text.split()) <= {"one", "two", "three", "four", "⁇"}
    for row, problem in ((Row("c", ""), "c: the text is empty"), (Row("d", "\x00"), "d: the text has")):
        with pytest.raises(ValueError, match=problem):
            recognizer.recognize([row])
    with pytest.raises(TypeError, match="the model translates text"):
        recognizer.recognize(["audio.wav"])


def test_a_grid_is_as_separate_decodes(mt):
    """Every pair of weights, from one pass of the encoder and from one pass each."""
    prepared = Prepared(mt / "prepared", "dev")
    recognizer = Recognizer.from_directory(mt / "run" / "model")
    rows = [Row(example.id, example.texts["source"]) for example in prepared.examples]
    pairs = [(weight, reward) for weight in (0.0, 0.5) for reward in (0.0, 0.7)]
    searches = [Search("attention", 3, *pair) for pair in pairs]
    grid = list(recognizer.recognize_each(rows, searches, 3, times=False))
    references = [example.texts[TEXT] for example in prepared.examples]
    separate = {}
    for i, pair in enumerate(pairs):
        weights = {"ctc_weight": pair[0], "length_reward": pair[1]}
        expected = recognizer.recognize(rows, "attention", 3, batch_size=3, **weights)
        assert [(found[i].text, found[i].score) for found in grid] == [(e.text, e.score) for e in expected]
        separate[pair] = BLEUMetric().measure(references, [e.text for e in expected]).value
    with RecognizerPool(mt / "run" / "model") as pool:
        points = search_grid(pool, prepared, range(8), BLEUMetric(), (0.0, 0.5), (0.0, 0.7), 3)
    found = {(point.ctc_weight, point.length_reward): point.score.value for point in points}
    assert found == pytest.approx(separate)
    assert [point.score.value for point in points] == sorted(separate.values(), reverse=True)


def test_texts_that_are_too_long_for_ctc_are_counted_and_trained(tmp_path):
    rows = [Row("long", "eins", translation="one " * 9)]
    rows.append(Row("fits", "eins zwei drei vier", translation="four three two one"))
    recipe = mt_recipe(tmp_path)
    write_manifest(tmp_path / "train.tsv", rows)
    train(recipe, tmp_path / "run", progress=False)
    log = (tmp_path / "run" / "train.log").read_text()
    assert "CTC skips 1 of the 2 translation texts of 'train', which have more tokens than frames: lo" in log
    write_manifest(tmp_path / "train.tsv", [*(replace(rows[0], id=f"l{i}") for i in range(8)), rows[1]])
    shutil.rmtree(tmp_path / "prepared")
    train(recipe, tmp_path / "many", progress=False)
    log = (tmp_path / "many" / "train.log").read_text()
    (stored,) = re.findall("skips 8 of .*: l0, l1, l2, l3, l4, ...; all are in (.*)", log)
    assert json.loads(Path(stored).read_text())["labels"]["too_long"] == [f"l{i}" for i in range(8)]
    shutil.rmtree(tmp_path / "prepared")
    losses = {name: loss.model_dump() for name, loss in recipe.stages["first"].losses.items()}
    losses["final"]["infeasible"] = "refuse"
    strict = mt_recipe(tmp_path, stages={"only": {"steps": 2, "losses": losses}})
    write_manifest(tmp_path / "train.tsv", rows)
    needs = r"long: the translation is too long: its 9 tokens \(word\) need 17 frames, "
    with pytest.raises(RecipeError, match=needs + "the source has 3 after 3x up-sampling"):
        train(strict, tmp_path / "other", progress=False)


def test_encoder_and_corpus_must_fit(tmp_path):
    with pytest.raises(RecipeError, match=r"model\.encoder\.kind: an encoder of kind conformer takes frames"):
        mt_recipe(tmp_path, model=mt_recipe(tmp_path).model.model_dump() | {"encoder": ENCODER})
    with pytest.raises(RecipeError, match=r"tokens\.source: missing; it is what the encoder takes"):
        mt_recipe(tmp_path, tokens={TEXT: {"kind": "word"}})


def test_speech_translation_is_trained_and_measured(st):
    model = load_model(st / "run" / "model")
    config = model.system.config
    assert list(config.upper_encoders) == [TEXT]
    assert list(config.decoders) == ["meant"]  # the transcript's decoder was the first stage's
    assert model.trim is not None
    assert model.trim.text == "transcript"
    evaluation = evaluate_models({"st": st / "run" / "model"}, Prepared(st / "prepared", "test"), QUICK)
    assert list(evaluation.metrics) == ["bleu", "chrf"]
    assert evaluation.time_per == "second"
    heard = Prepared(st / "prepared", "test").examples
    frames = [subsampled_frames(example.num_frames, 4) for example in heard]
    words = sum(len(example.texts["transcript"].split()) for example in heard)
    assert evaluation.systems[0].down_sampling.oracle == pytest.approx(words / sum(frames))
    recognizer = Recognizer.from_directory(st / "run" / "model")
    (result,) = recognizer.recognize([st / "test-0.wav"], beam=3, others=True)
    assert list(result.others) == ["transcript"]
    assert set(result.others["transcript"].split()) <= {"eins", "zwei", "drei", "vier", "⁇"}


def test_the_first_stage_has_no_translation_encoder(st):
    recipe = st_recipe(st)
    first, second = (recipe.system_of(stage) for stage in recipe.stages.values())
    assert (list(first.upper_encoders), list(first.heads), list(first.decoders)) == (
        [],
        ["transcript"],
        ["said"],
    )
    assert (list(second.upper_encoders), list(second.decoders)) == ([TEXT], ["meant"])
