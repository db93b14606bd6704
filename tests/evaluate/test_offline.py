"""What `evaluate` finds is what its parts find one by one; and it goes to JSON and back."""

import dataclasses
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import brctc
from brctc.data import Prepared, Storage, TokenConfig, Tokenizer, pad, prepare_split
from brctc.decode import Recognizer
from brctc.evaluate import (
    Difference,
    Evaluation,
    EvaluationOptions,
    MetricInfo,
    Score,
    compare,
    error_rate,
    evaluate_models,
)
from brctc.evaluate.metrics import ErrorRateMetric
from brctc.evaluate.translation_metrics import BLEUMetric, ChrFMetric
from brctc.models import Model, System, SystemConfig, load_model
from brctc.report import write_report
from brctc.report.tables import results_table
from brctc.train import train
from brctc.trimming import trimmed_lengths
from tests.data.splits import ArrayItem, ArraySource, write_split
from tests.evaluate.conftest import QUICK
from tests.evaluate.online_toys import store
from tests.train.tiny import ENCODER, PLAIN, TRANSDUCER, decoder_loss, tiny_recipe


def read_one_by_one(model_dir, prepared, **options):
    recognizer = Recognizer.from_directory(model_dir)
    sources = [(utterance.id, prepared.features(i)) for i, utterance in enumerate(prepared.examples)]
    return [result.text for result in recognizer.recognize(sources, batch_size=1, **options)]


def test_errors_are_those_of_the_texts(trained, evaluation):
    references = [utterance.texts["transcript"] for utterance in trained.test.examples]
    found = [read_one_by_one(path, trained.test, method="ctc-greedy") for path in trained.models.values()]
    assert len(set(found[0])) > 2  # or the test would see nothing
    for system, texts in zip(evaluation.systems, found, strict=True):
        error = error_rate(references, texts, "char")
        detail = f"{error.errors:,} / {error.tokens:,}"
        assert system.scores == {"error-rate": Score(error.rate, error.low, error.high, detail)}
    first, second = evaluation.systems
    assert first.differences == {}
    paired = compare(references, found[0], found[1], "char")
    assert second.differences == {
        "error-rate": Difference(paired.difference, paired.low, paired.high, paired.probability_b_better)
    }
    assert paired.rate_a == first.scores["error-rate"].value
    assert evaluation.metrics == {
        "error-rate": MetricInfo("error rate", "%", 100.0, False, "errors / characters")
    }
    assert evaluation.main_metric == ("error-rate", evaluation.metrics["error-rate"])
    assert evaluation.utterances == len(references)
    assert evaluation.duration_s == pytest.approx(sum(u.duration_s for u in trained.test.examples))


@torch.inference_mode()
def test_factors_are_those_of_the_rule(trained, evaluation):
    """Also of a model that does not trim: what the usual rule would keep of it."""
    for system, path in zip(evaluation.systems, trained.models.values(), strict=True):
        model = load_model(path)
        kept = frames = labels = 0
        for i, utterance in enumerate(trained.test.examples):
            encoded = model.system.encode(pad([torch.from_numpy(trained.test.features(i))]))
            logits, lengths = encoded.logits("middle")
            kept += int(trimmed_lengths(logits, lengths, from_logits=True))
            frames += int(lengths)
            labels += len(utterance.texts["transcript"])
        assert system.down_sampling == pytest.approx((kept / frames, labels / frames))
    assert [system.trims for system in evaluation.systems] == [False, True]
    assert all(system.trimmable for system in evaluation.systems)


def test_an_online_model_cannot_be_trimmed(model, split, tmp_path):
    (found,) = evaluate_models({"online": store(model, tmp_path)}, split, QUICK).systems
    assert (found.trims, found.trimmable, found.down_sampling.factor) == (False, False, 1.0)


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


@pytest.mark.parametrize(
    ("kind", "name"), [(None, "prepared"), ("manifests", "prepared"), ("spoken-text", "spoken-text")]
)
def test_results_are_of_the_corpus_that_was_decoded(trained, kind, name):
    """A model of real speech that is tried on synthetic speech has results on synthetic speech."""
    split = Prepared(trained.test.directory, "test")
    split.origin = kind and {"corpus": {"kind": kind}}
    options = dataclasses.replace(QUICK, limit=1, batch=1, beams=())
    assert evaluate_models({"vanilla": trained.vanilla / "model"}, split, options).corpus == name


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
    for vanilla, early in zip(evaluation.sweep[::2], evaluation.sweep[1::2], strict=True):
        assert vanilla.real_time.ratio == 1
        assert early.real_time.ratio == pytest.approx(early.real_time.rtf / vanilla.real_time.rtf)


def test_batches_are_timed_as_a_whole(trained, evaluation):
    assert evaluation.batch == 3
    first, second = (system.batch_time for system in evaluation.systems)
    assert first.ratio == 1
    assert second.ratio == pytest.approx(second.rtf / first.rtf)
    order = sorted(example.duration_s for example in trained.test.examples)
    count = len(order)
    places = [quarter * count // 4 - 1 for quarter in (1, 3)]
    assert first.audio_s == pytest.approx(sum(sum(order[place : place + 3]) for place in places))
    alone = evaluate_models(trained.models, trained.test, dataclasses.replace(QUICK, batch=1, beams=()))
    assert [system.batch_time for system in alone.systems] == [None, None]


def test_the_recipe_says_the_beam(trained):
    options = dataclasses.replace(QUICK, limit=1, beams=(), batch=1)
    method = {name: "ctc-beam" for name in trained.models}
    found = evaluate_models(trained.models, trained.test, options, methods=method)
    said = [load_model(path).description["recipe"]["decode"]["beam"] for path in trained.models.values()]
    assert [system.beam for system in found.systems] == said
    other = dataclasses.replace(options, beam=said[0] + 1)
    found = evaluate_models(trained.models, trained.test, other, methods=method)
    assert found.systems[0].beam == said[0] + 1


def test_methods_limit_and_progress(trained):
    told = []
    found = evaluate_models(
        trained.models,
        trained.test,
        dataclasses.replace(QUICK, beam=3, limit=2, beams=()),
        methods={"brctc": "ctc-beam"},
        metrics={"words": ErrorRateMetric(unit="word")},
        progress=lambda *what: told.append(what),
    )
    assert [(system.method, system.beam) for system in found.systems] == [
        ("ctc-greedy", None),
        ("ctc-beam", 3),
    ]
    assert found.utterances == 2
    assert found.metrics["words"].detail_title == "errors / words"
    assert all(system.scores["words"].detail.endswith(" / 2") for system in found.systems)  # a word each
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
    score = plain["systems"][1]["scores"]["error-rate"]
    assert score["value"] == evaluation.systems[1].scores["error-rate"].value  # by name, not by place
    assert list(plain) == [field.name for field in dataclasses.fields(Evaluation)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda plain: plain["systems"][1]["scores"]["error-rate"].pop("value"),
            r"systems\.1\.scores\.error-rate\.value",
        ),
        (lambda plain: plain["metrics"]["error-rate"].update(scale="much"), r"metrics\.error-rate\.scale"),
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
        EvaluationOptions(rtf_utterances=0)
    with pytest.raises(ValueError, match="beams is 0, expected at least 1"):
        EvaluationOptions(beams=(2, 0))
    other = write_split(tmp_path, "test", {"u": ("1", torch.zeros(20, 9).numpy(), None)})
    with pytest.raises(ValueError, match=r"vanilla takes 8 features of None, but .* has 9"):
        evaluate_models(trained.models, other)


def test_a_translation_is_measured_against_its_own_text(trained, tmp_path):
    """Of a system that has no head for the transcript, too."""
    tokenizer = Tokenizer.train(["ab"], TokenConfig(kind="char"))
    config = {"encoder": ENCODER, "heads": {"translation": {}}, "output": "translation"}
    torch.manual_seed(0)
    system = System(SystemConfig.model_validate(config), 8, {"translation": tokenizer.size})
    model = store(Model(system.eval(), {"translation": tokenizer}, None, None, {}), tmp_path / "model")
    rng = np.random.default_rng(0)
    texts = {"transcript": "one two", "translation": "abba"}
    items = [ArrayItem(f"u{i}", texts, rng.random((30, 8), np.float32)) for i in range(3)]
    prepare_split(ArraySource(items), tmp_path, "test", Storage("features", None, 8, 0.01))
    prepared = Prepared(tmp_path, "test")
    metrics = {"cer": ErrorRateMetric(unit="char")}
    found = evaluate_models({"a": model}, prepared, QUICK, metrics=metrics).systems[0]
    said = read_one_by_one(model, prepared, method="ctc-greedy")
    assert found.scores["cer"].value == error_rate(["abba"] * 3, said, "char").rate
    assert found.scores["cer"].detail.endswith(" / 12")
    assert found.down_sampling.oracle == pytest.approx(4 / 30)
    both = evaluate_models({"a": model, "b": model}, prepared, dataclasses.replace(QUICK, beams=()))
    assert list(both.metrics) == ["bleu", "chrf"]  # unless its recipe says otherwise
    assert all(info.higher_is_better for info in both.metrics.values())
    assert both.systems[0].scores["chrf"] == ChrFMetric().measure(["abba"] * 3, said)
    assert both.systems[1].differences["bleu"] == Difference(0, 0, 0, 0.5)
    assert Evaluation.from_json(both.to_json()) == both
    early = {"bleu": BLEUMetric.model_construct(tokenize="13b")}
    with pytest.raises(KeyError, match="13b"):  # before anything is decoded
        evaluate_models({"a": model}, prepared, metrics=early, progress=lambda *_: pytest.fail("too late"))


def test_several_processes_find_the_same(trained, evaluation):
    found = evaluate_models(trained.models, trained.test, dataclasses.replace(QUICK, jobs=2, beams=()))
    for system, alone in zip(found.systems, evaluation.systems, strict=True):
        assert system.scores == alone.scores
        assert system.differences == alone.differences
        assert system.down_sampling == alone.down_sampling


def with_metrics(model_dir, folder, metrics):
    """The model as a recipe with these metrics would have left it."""
    model = load_model(model_dir)
    model.description["recipe"]["metrics"] = metrics
    return store(model, folder)


def test_metrics_of_the_first_models_recipe(trained, tmp_path):
    """All systems are measured with the same, in the recipe's order."""
    metrics = {"wer": {"kind": "error-rate"}, "cer": {"kind": "error-rate", "unit": "char"}}
    first = with_metrics(trained.vanilla / "model", tmp_path / "vanilla", metrics)
    found = evaluate_models({"a": first, "b": trained.brctc / "model"}, trained.test, QUICK)
    assert list(found.metrics) == ["wer", "cer"]
    assert found.main_metric[0] == "wer"
    for system in found.systems:
        assert list(system.scores) == ["wer", "cer"]
        assert system.scores["wer"].detail.endswith(f" / {len(trained.test)}")
    assert list(found.systems[1].differences) == ["wer", "cer"]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ({"kind": "vowels"}, r"metrics\.mine\.kind: there is no metric 'vowels'; There are: error-rate"),
        ({"kind": "error-rate", "unit": "phone"}, r"metrics\.mine: unit: expected 'word' or 'char'"),
    ],
)
def test_a_metric_that_is_not_known_is_refused_before_anything_is_decoded(trained, tmp_path, metric, message):
    first = with_metrics(trained.vanilla / "model", tmp_path / "vanilla", {"mine": metric})
    with pytest.raises(ValueError, match=f"the model's recipe: {message}"):
        evaluate_models({"a": first}, trained.test, progress=lambda *_: pytest.fail("too late"))


def test_further_test_sets_stand_in_the_same_table(trained, evaluation):
    """As if each had been evaluated alone; only the first is timed."""
    dev = Prepared(trained.test.directory, "dev")
    both = evaluate_models(trained.models, trained.test, QUICK, others=[dev])
    alone = evaluate_models(trained.models, dev, QUICK)
    assert [s.scores for s in both.systems] == [s.scores for s in evaluation.systems]
    (other,) = both.others
    assert (other.split, other.utterances, other.duration_s) == ("dev", len(dev), alone.duration_s)
    for found, expected in zip(other.systems, alone.systems, strict=True):
        assert (found.scores, found.differences) == (expected.scores, expected.differences)
        assert found.down_sampling == expected.down_sampling
    assert Evaluation.from_json(both.to_json()) == both
    rows = {row[0]: row[1:3] for row in results_table(both).rows}
    title = next(title for title in rows if " on dev" in title)
    name, info = both.main_metric
    score = other.systems[1].scores[name]
    assert rows[title][1].startswith(info.show(score.value))
    assert not any(" on dev" in row[0] for row in results_table(evaluation).rows)


def test_a_share_is_timed_from_the_beginning(trained):
    options = EvaluationOptions(rtf_share=Fraction(1, 3))
    assert options.timed(10) == [0, 1, 2, 3]
    assert options.timed(9) == [0, 1, 2]
    assert options.timed_are == "the first 1/3 of the test set"
    assert EvaluationOptions(rtf_utterances=2).timed(10) == [0, 9]
    for share in (Fraction(0), Fraction(2), Fraction(-1, 2)):
        with pytest.raises(ValueError, match=r"rtf_share is .*, expected a share above 0, at most 1"):
            EvaluationOptions(rtf_share=share)


def test_blanks_can_be_skipped_in_front_of_a_decoder(tmp_path):
    """A system that does not trim is there twice; the second's decoder sees what `skip_blanks` leaves."""
    losses = PLAIN | {"transducer": decoder_loss("transducer") | {"skip_blanks": 0.5}}
    recipe = tiny_recipe(
        tmp_path,
        model={"encoder": ENCODER, "decoders": {"transducer": TRANSDUCER}},
        stages={"only": {"steps": 3, "losses": losses}},
        decode={"method": "transducer-greedy"},
    )
    run = train(recipe, tmp_path / "run", progress=False).parent
    split = Prepared(tmp_path / "prepared", "test")
    system = load_model(run / "model").system
    found = evaluate_models({"run": run / "model"}, split, replace(QUICK, skip_blanks=0.2))
    whole, skipped = found.systems
    assert (whole.name, skipped.name, skipped.run) == ("run", "run, blanks skipped", "run")
    before = after = 0
    for i in range(len(split)):
        encoded = system.encode(pad([torch.from_numpy(split.features(i))]))
        hidden, lengths = encoded.final
        expected = brctc.skip_blanks(
            hidden, lengths, encoded.logits().values, threshold=0.2, from_logits=True
        )
        memory = encoded.seen_by("transducer", 0.2)
        torch.testing.assert_close(memory.hidden.values, expected.hidden)
        before, after = before + int(lengths), after + int(expected.lengths)
    assert 0 < after < before
    assert skipped.down_sampling.factor == after / before
    assert skipped.trims
    assert not whole.trims
    write_report([run], tmp_path / "page.html", found)
    assert "run, blanks skipped" in (tmp_path / "page.html").read_text()


def test_nothing_can_be_skipped_without_a_decoder(trained):
    with pytest.raises(ValueError, match="skip_blanks: no model has a decoder"):
        evaluate_models(trained.models, trained.test, replace(QUICK, skip_blanks=0.9))
