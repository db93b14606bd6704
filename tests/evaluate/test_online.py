"""An online model on a split whose words are, by construction, where they are said to be."""

import json
import math

import pytest

from brctc.data import FeatureConfig, Prepared, PreparedWriter, WordTime, fbank
from brctc.evaluate import OnlineEvaluation, evaluate_cells, evaluate_online, evaluate_runs
from brctc.models import EncoderConfig, Model, save_model
from tests.decode.test_streaming import sound
from tests.evaluate.online_toys import DRIFT_S, FEATURES, LENGTH_S, SMALL, make_model, online_model


def test_what_was_built_in_is_found(model, split, tmp_path):
    save_model(tmp_path, *(getattr(model, name) for name in model.__dataclass_fields__))
    seen = []
    found = evaluate_online(tmp_path, split, streamed=5, progress=lambda *done: seen.append(done))
    assert (found.utterances, found.streamed, found.without_reference) == (10, 5, 2)
    assert (found.unit, found.error.errors, found.error.deletions) == ("word", 1, 1)
    assert found.error.tokens == sum(len(utterance.text.split()) for utterance in split.utterances)
    assert found.drift.counted == sum(len(utterance.word_times or ()) for utterance in split.utterances) > 50
    assert found.drift[1:] == pytest.approx([1000 * DRIFT_S] * 5)
    assert found.streamed_drift[1:] == pytest.approx(found.drift[1:])
    assert found.end_of_sentence.mean_ms == pytest.approx(1000 * (DRIFT_S - LENGTH_S))
    assert (found.chunk_ms, found.right_context_ms, found.dcl_ms) == (160, 80, 160)
    assert found.cl_ms == 160 * found.rtf
    assert found.latency_ms == pytest.approx(160 + found.cl_ms + 300)
    assert found.expected_ms == pytest.approx(found.latency_ms)
    assert {name for name, *_ in seen} == {"decoding", "streaming"}
    assert seen[-1] == ("streaming", 5, 5)


def test_observed_latency_is_the_sum(model, split):
    """The words are anywhere in their chunks, so they wait as long as the paper's mean says."""
    found = evaluate_online(model, split, streamed=8)
    assert found.observed.counted == found.drift.counted
    assert found.observed.mean_ms == pytest.approx(found.expected_ms, rel=0.1)
    assert found.observed_end_of_sentence.counted == 8


def test_to_json_and_back(model, split):
    found = evaluate_online(model, split, limit=3, streamed=1)
    assert OnlineEvaluation.from_json(found.to_json()) == found
    with pytest.raises(ValueError, match="not an evaluation: error: Field required"):
        OnlineEvaluation.from_json('{"utterances": 3, "digest": "", "unit": "word"}')


def test_no_reference_times(model, tmp_path):
    """A latency needs them, of one utterance at least; one that gets no word right has none either."""
    with PreparedWriter(tmp_path, "test", feature_dim=16, frame_shift_s=0.01, feature_config=FEATURES) as out:
        out.add("u", "one", fbank(sound(), FEATURES))
        out.add("v", "no", fbank(sound(), FEATURES), word_times=(WordTime("no", 0.1, 0.2),))
    split = Prepared(tmp_path, "test")
    with pytest.raises(ValueError, match=r"none of the 1 utterances of 'test' says when its words begin"):
        evaluate_online(model, split, limit=1)
    found = evaluate_online(model, split)
    assert (found.without_reference, found.streamed, found.observed.counted) == (1, 1, 0)
    assert math.isnan(found.latency_ms)
    assert found.rtf > 0
    json.loads(found.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    read = OnlineEvaluation.from_json(found.to_json())
    assert read.error == found.error
    assert math.isnan(read.latency_ms)


@pytest.fixture(scope="module")
def mixed(model, tmp_path_factory):
    """Models of words and of characters, by their tokens."""
    folder = tmp_path_factory.mktemp("mixed")
    for name, found in (("word", model), ("char", online_model("char"))):
        save_model(folder / name, *(getattr(found, field) for field in found.__dataclass_fields__))
    return {name: folder / name for name in ("word", "char")}


@pytest.mark.parametrize("first", ["word", "char"])
def test_models_have_the_unit_of_the_first(mixed, split, first):
    runs = {name: mixed[name] for name in sorted(mixed, reverse=first == "word")}
    found = evaluate_runs(runs, split, limit=2)
    assert found.trials[0].name == first
    assert {trial.online.unit for trial in found.trials} == {first}
    assert len({trial.online.error.tokens for trial in found.trials}) == 1


def test_cells_have_the_unit_of_the_first(mixed, split):
    """A cell that was measured in another unit is measured again."""
    folder = mixed["word"].parent
    (alone,) = evaluate_cells({"char": "char"}, folder, split).trials
    assert alone.online.unit == "char"
    both = evaluate_cells({"word": "word", "char": "char"}, folder, split).trials
    assert [trial.online.unit for trial in both] == ["word", "word"]
    stored = OnlineEvaluation.from_json((mixed["char"] / "online.json").read_text())
    assert stored.to_json() == both[1].online.to_json()


def test_refusals(model, split):
    offline = make_model(EncoderConfig(first_layers=1, second_layers=1, kernel_size=3, **SMALL))
    with pytest.raises(ValueError, match="the model has a conformer, which takes no streams"):
        evaluate_online(offline, split)
    with pytest.raises(ValueError, match="limit is 0, expected at least 1"):
        evaluate_online(model, split, limit=0)
    other = Model(model.system, model.tokenizer, FeatureConfig(num_bins=16, dither=0.1), None, {})
    with pytest.raises(ValueError, match=r"the model takes 16 features of .*dither=0.1"):
        evaluate_online(other, split)
