"""An online model on a split whose words are, by construction, where they are said to be."""

import json
import math

import pytest

from brctc.data import FeatureConfig, WordTime, extract_features
from brctc.evaluate import OnlineEvaluation, evaluate_cells, evaluate_online, evaluate_runs
from brctc.models import ConformerConfig, Model
from tests.data.splits import write_split
from tests.decode.test_streaming import sound
from tests.evaluate.online_toys import DRIFT_S, FEATURES, LENGTH_S, SMALL, make_model, online_model, store


@pytest.fixture(scope="module")
def stored(model, tmp_path_factory):
    """The directory of the online model."""
    return store(model, tmp_path_factory.mktemp("model"))


def test_what_was_built_in_is_found(stored, split):
    seen = []
    found = evaluate_online(stored, split, streamed=5, progress=lambda *done: seen.append(done))
    assert (found.utterances, found.streamed, found.without_reference) == (10, 5, 2)
    assert (found.unit, found.error.errors, found.error.deletions) == ("word", 1, 1)
    assert found.error.tokens == sum(
        len(utterance.texts["transcript"].split()) for utterance in split.examples
    )
    assert found.drift.counted == sum(len(utterance.word_times or ()) for utterance in split.examples) > 50
    assert found.drift[1:] == pytest.approx([1000 * DRIFT_S] * 5)
    assert found.streamed_drift[1:] == pytest.approx(found.drift[1:])
    assert found.end_of_sentence.mean_ms == pytest.approx(1000 * (DRIFT_S - LENGTH_S))
    assert (found.chunk_ms, found.right_context_ms, found.dcl_ms) == (160, 80, 160)
    assert found.cl_ms == 160 * found.rtf
    assert found.latency_ms == pytest.approx(160 + found.cl_ms + 300)
    assert found.expected_ms == pytest.approx(found.latency_ms)
    assert {name for name, *_ in seen} == {"decoding", "streaming"}
    assert seen[-1] == ("streaming", 5, 5)


def test_observed_latency_is_the_sum(stored, split):
    """The words are anywhere in their chunks, so they wait as long as the paper's mean says."""
    found = evaluate_online(stored, split, streamed=8)
    assert found.observed.counted == found.drift.counted
    assert found.observed.mean_ms == pytest.approx(found.expected_ms, rel=0.1)
    assert found.observed_end_of_sentence.counted == 8


def test_to_json_and_back(stored, split):
    found = evaluate_online(stored, split, limit=3, streamed=1)
    assert OnlineEvaluation.from_json(found.to_json()) == found
    with pytest.raises(ValueError, match="not an evaluation: error: Field required"):
        OnlineEvaluation.from_json('{"utterances": 3, "digest": "", "unit": "word"}')


def test_no_reference_times(stored, tmp_path):
    """A latency needs them, of one utterance at least; one that gets no word right has none either."""
    features = extract_features(sound(), FEATURES)
    examples = {"u": ("one", features, None), "v": ("no", features, [WordTime("no", 0.1, 0.2)])}
    split = write_split(tmp_path, "test", examples, feature_config=FEATURES)
    with pytest.raises(ValueError, match=r"none of the 1 utterances of 'test' has word times"):
        evaluate_online(stored, split, limit=1)
    found = evaluate_online(stored, split)
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
    models = {"word": model, "char": online_model("char")}
    return {name: store(found, folder / name) for name, found in models.items()}


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


def test_several_processes_find_the_same(stored, split):
    alone, together = (evaluate_online(stored, split, streamed=2, jobs=jobs) for jobs in (1, 2))
    for field in ("digest", "error", "texts", "drift", "end_of_sentence", "streamed_drift", "dcl_ms"):
        assert getattr(together, field) == getattr(alone, field)


def test_refusals(model, stored, split, tmp_path):
    offline = make_model(ConformerConfig(first_layers=1, second_layers=1, kernel_size=3, **SMALL))
    folder = store(offline, tmp_path / "offline")
    with pytest.raises(ValueError, match=r"offline has a conformer, but needs a streaming encoder"):
        evaluate_online(folder, split)
    with pytest.raises(ValueError, match="limit is 0, expected at least 1"):
        evaluate_online(stored, split, limit=0)
    other = Model(model.system, model.tokenizers, FeatureConfig(num_bins=16, dither=0.1), None, {})
    with pytest.raises(ValueError, match=r"other takes 16 features of .*dither=0.1"):
        evaluate_online(store(other, tmp_path / "other"), split)
