"""What `evaluate` finds is what its parts find one by one; and it goes to JSON and back."""

import dataclasses
import json

import pytest
import torch

from brctc.data import Prepared, PreparedWriter
from brctc.decode import Recognizer
from brctc.evaluate import Evaluation, compare, error_rate, evaluate_models
from brctc.models import load_model
from brctc.trim import trimmed_lengths
from tests.evaluate.conftest import QUICK


def read_one_by_one(model_dir, prepared, **options):
    recognizer = Recognizer.from_directory(model_dir)
    sources = [(utterance.id, prepared.features(i)) for i, utterance in enumerate(prepared.utterances)]
    return [result.text for result in recognizer.recognize(sources, batch_size=1, **options)]


def test_errors_are_those_of_the_texts(trained, evaluation):
    references = [utterance.text for utterance in trained.test.utterances]
    found = [read_one_by_one(path, trained.test, method="ctc-greedy") for path in trained.models.values()]
    assert len(set(found[0])) > 2  # or the test would see nothing
    for system, texts in zip(evaluation.systems, found, strict=True):
        assert system.error == error_rate(references, texts, "char")
    first, second = evaluation.systems
    assert first.difference is None
    assert second.difference == compare(references, found[0], found[1], "char")
    assert second.difference.rate_a == first.error.rate
    assert evaluation.unit == "char"
    assert evaluation.utterances == len(references)
    assert evaluation.duration_s == pytest.approx(sum(u.duration_s for u in trained.test.utterances))


@torch.inference_mode()
def test_factors_are_those_of_the_rule(trained, evaluation):
    """Also of a model that does not trim: what the usual rule would keep of it."""
    for system, path in zip(evaluation.systems, trained.models.values(), strict=True):
        model = load_model(path)
        kept = frames = labels = 0
        for i, utterance in enumerate(trained.test.utterances):
            features = torch.from_numpy(trained.test.features(i))[None]
            encoded = model.system.encode(features, torch.tensor([features.shape[1]]), None)
            kept += int(trimmed_lengths(encoded.inter_logits, encoded.inter_lengths, from_logits=True))
            frames += int(encoded.inter_lengths)
            labels += len(utterance.text)
        assert system.down_sampling == pytest.approx((kept / frames, labels / frames))
    assert [system.trims for system in evaluation.systems] == [False, True]


def test_systems_say_what_they_are(trained, evaluation):
    first, second = evaluation.systems
    assert (first.name, second.name) == ("vanilla", "brctc")
    assert (first.risk, second.risk) == ("none", "early-finish 5")
    assert first.method == "ctc-greedy"
    assert first.beam is None
    assert first.steps == second.steps == 20
    assert first.parameters == sum(
        p.numel() for p in load_model(trained.vanilla / "model").system.parameters()
    )
    assert evaluation.corpus == "handwriting"
    assert evaluation.machine["torch"] == torch.__version__


def test_times_take_turns(evaluation):
    for system in evaluation.systems:
        timed = system.real_time
        assert timed.name == system.name
        assert timed.rtf == pytest.approx(timed.encoder_rtf + timed.decoder_rtf)
        assert timed.encoder_s > 0
        assert timed.decoder_s > 0
    assert evaluation.systems[0].real_time.ratio == 1
    points = [(point.name, point.method, point.beam) for point in evaluation.sweep]
    assert points == [(name, "ctc-beam", beam) for beam in (2, 4) for name in ("vanilla", "brctc")]
    for vanilla, brctc in zip(evaluation.sweep[::2], evaluation.sweep[1::2], strict=True):
        assert vanilla.real_time.ratio == 1
        assert brctc.real_time.ratio == pytest.approx(brctc.real_time.rtf / vanilla.real_time.rtf)


def test_methods_limit_and_progress(trained):
    told = []
    found = evaluate_models(
        trained.models,
        trained.test,
        beam=3,
        limit=2,
        methods={"brctc": "ctc-beam"},
        unit="word",
        progress=lambda *what: told.append(what),
        **QUICK | {"beams": ()},
    )
    assert [(system.method, system.beam) for system in found.systems] == [
        ("ctc-greedy", None),
        ("ctc-beam", 3),
    ]
    assert found.utterances == 2
    assert found.unit == "word"
    assert found.sweep == ()
    counts = {what: [(done, total) for w, done, total in told if w == what] for what, _, _ in told}
    for done in counts.values():
        assert [n for n, _ in done] == sorted({n for n, _ in done})  # it only rises
        assert done[-1][0] == done[-1][1]  # to the end
    assert counts["decoding, vanilla"][-1] == (2, 2)
    assert counts["timing"][-1][1] == 2 * 2 * 2  # systems, utterances, warm-up and repeat


def test_json_and_back(evaluation, tmp_path):
    assert Evaluation.from_json(evaluation.to_json()) == evaluation
    evaluation.save(tmp_path / "folder" / "found.json")
    assert Evaluation.load(tmp_path / "folder" / "found.json") == evaluation
    plain = json.loads((tmp_path / "folder" / "found.json").read_text())
    assert plain["systems"][1]["error"]["rate"] == evaluation.systems[1].error.rate  # by name, not by place
    assert list(plain) == [field.name for field in dataclasses.fields(Evaluation)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain["systems"][1]["error"].pop("rate"), r"systems\.1\.error\.rate"),
        (lambda plain: plain.update(unit="phone"), "unit"),
        (lambda plain: plain.pop("machine"), "machine"),
    ],
)
def test_other_json_is_refused(evaluation, tmp_path, change, message):
    plain = json.loads(evaluation.to_json())
    change(plain)
    (tmp_path / "bad.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=rf"bad\.json: not an evaluation: {message}"):
        Evaluation.load(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json: not an evaluation"):
        Evaluation.load(tmp_path / "bad.json")


def test_bad_arguments(trained, tmp_path):
    with pytest.raises(ValueError, match="no models"):
        evaluate_models({}, trained.test)
    with pytest.raises(ValueError, match=r"methods names 'other', the models are vanilla, brctc"):
        evaluate_models(trained.models, trained.test, methods={"other": "ctc"})
    with pytest.raises(ValueError, match="rtf_utterances is 0"):
        evaluate_models(trained.models, trained.test, rtf_utterances=0)
    with PreparedWriter(tmp_path, "test", feature_dim=9, frame_shift_s=0.01) as writer:
        writer.add("u", "1", torch.zeros(20, 9).numpy())
    with pytest.raises(ValueError, match=r"vanilla takes 8 features of None, but .* has 9"):
        evaluate_models(trained.models, Prepared(tmp_path, "test"))
