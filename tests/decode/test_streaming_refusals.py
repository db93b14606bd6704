"""What a stream refuses, it has not heard."""

import numpy as np
import pytest
import torch

from brctc.data import extract_features
from brctc.decode import PushError, StreamingRecognizer, flush_together, push_together
from brctc.models import ConformerConfig, Model, save_model
from tests.data.sounds import RATE
from tests.decode.streams import make_model, runs, said, sound, stream


@pytest.fixture(scope="module")
def model():
    return make_model()


def test_together_refused(model):
    one, two = StreamingRecognizer(model), StreamingRecognizer(model)
    with pytest.raises(ValueError, match="a recognizer is there twice"):
        push_together([(one, sound()), (one, sound())])
    with pytest.raises(ValueError, match="different models"):
        push_together([(one, sound()), (StreamingRecognizer(make_model(1)), sound())])
    assert one.heard_s == two.heard_s == 0  # a call that makes no sense is heard by none
    with pytest.raises(PushError, match="push 0: samples at 8000 Hz, expected the model's rate: 16000 Hz"):
        push_together([(one, sound()), (two, sound())], 8000)
    assert one.heard_s == two.heard_s == 0


def test_floats_of_all_kinds(model):
    samples = sound().astype(np.float16)
    wanted = said(stream(StreamingRecognizer(model), samples.astype(np.float32), 5000))
    tensor = torch.from_numpy(samples)
    for given in (samples, samples.astype(np.float64), tensor, tensor.double().requires_grad_()):
        assert said(stream(StreamingRecognizer(model), given, 5000)) == wanted
    backwards = samples[::-1].copy()[::-1]
    assert said(stream(StreamingRecognizer(model), backwards, 5000)) == wanted
    assert StreamingRecognizer(model).push(tensor.bfloat16())


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        (np.zeros(9, np.int16), TypeError, "samples are int16, expected floats .*: divide by 32768"),
        (torch.zeros(9, dtype=torch.int16), TypeError, "samples are int16, .* divide by 32768"),
        (np.zeros(9, np.uint8), TypeError, "samples are uint8, expected floats"),
        (np.zeros(9, complex), TypeError, "samples are complex128"),
        ([0.0, 0.1], TypeError, "samples are a list"),
        (np.zeros((9, 2)), ValueError, r"shape \(9, 2\), expected one dimension"),
        (torch.zeros(1, 9), ValueError, r"shape \(1, 9\), expected one dimension"),
        (np.float32(0), TypeError, "samples are a float32, expected a numpy array"),
        (np.array([0, 0, np.nan]), ValueError, "sample 1602 of the stream is nan, expected -1 to 1"),
        (torch.tensor([0, -torch.inf]), ValueError, "sample 1601 of the stream is -inf, expected"),
        (np.array([0.5, 0, 1200]), ValueError, "sample 1602 of the stream is 1200, expected -1 to 1"),
    ],
)
def test_bad_samples(model, samples, error, message):
    """They are refused, and the stream goes on as if nothing had happened."""
    recognizer, good = StreamingRecognizer(model), sound()
    found = recognizer.push(good[:1600])
    with pytest.raises(error, match=message):
        recognizer.push(samples)
    assert recognizer.heard_s == 0.1
    found += recognizer.push(good[1600:], RATE) + recognizer.flush()
    assert said(found) == runs(model, good)


def test_a_bad_push_fails_alone(model):
    """In whatever place: it is named and heard by none, and the others say what they say without it."""
    sounds = [sound(seed, 1.5) for seed in range(3)]
    bad = np.full(500, np.inf, np.float32)
    for place in range(3):
        recognizers = [StreamingRecognizer(model, name=f"caller {n}") for n in range(3)]
        found = push_together([(r, samples[:9000]) for r, samples in zip(recognizers, sounds, strict=True)])
        with pytest.raises(PushError) as caught:
            push_together(
                [(r, bad if n == place else sounds[n][9000:15000]) for n, r in enumerate(recognizers)]
            )
        problem = f"push {place} (caller {place}): sample 9000 of the stream is inf, expected -1 to 1"
        assert str(caught.value) == problem
        assert list(caught.value.errors) == [place]
        assert caught.value.fired[place] == []
        heard = [9000 if n == place else 15000 for n in range(3)]
        assert [recognizer.heard_s for recognizer in recognizers] == [count / RATE for count in heard]
        rest = [(r, sounds[n][heard[n] :]) for n, r in enumerate(recognizers)]
        for more in (caught.value.fired, push_together(rest), flush_together(recognizers)):
            found = [before + tokens for before, tokens in zip(found, more, strict=True)]
        for tokens, samples in zip(found, sounds, strict=True):
            assert said(tokens) == runs(model, samples)


def test_a_flush_fails_alone(model):
    one, two = StreamingRecognizer(model), StreamingRecognizer(model, name="two")
    found = push_together([(one, sound(0)), (two, sound(1))])[0]
    two.flush()
    with pytest.raises(PushError, match=r"flush 1 \(two\): the stream was flushed") as caught:
        flush_together([one, two])
    assert said(found + caught.value.fired[0]) == runs(model, sound(0))


def test_a_model_in_training_hears_nothing():
    """Whatever is pushed or flushed is refused, and counts again when it comes again."""
    model, samples = make_model(), sound(0, 1.5)
    features = extract_features(samples, model.features)
    by_samples, by_features = StreamingRecognizer(model), StreamingRecognizer(model)
    found = by_samples.push(samples[:9000])
    found_by_features = by_features.push_features(features[:70])
    heard = by_samples.heard_s, by_features.heard_s
    for call in (
        lambda: by_samples.push(samples[9000:]),
        lambda: push_together([(by_samples, samples[9000:])]),
        lambda: by_features.push_features(features[70:]),
        by_samples.flush,
        by_features.flush,
    ):
        model.system.train()
        with pytest.raises(ValueError, match=r"in training mode: call its eval\(\) first"):
            call()
        assert (by_samples.heard_s, by_features.heard_s) == heard
    model.system.eval()
    found += by_samples.push(samples[9000:]) + by_samples.flush()
    assert said(found) == runs(model, samples)
    found_by_features += by_features.push_features(features[70:]) + by_features.flush()
    assert said(found_by_features) == runs(model, samples)


def test_refused_features_are_not_heard(model):
    """Not even as the first of a stream, which then takes samples or features as it likes."""
    samples = sound(0, 1.5)
    features = torch.from_numpy(extract_features(samples, model.features))
    broken = features.clone()
    broken[3, 2] = torch.nan
    cases = [
        (broken, "a feature is not finite"),
        (features[:, :3], r"shape \(150, 3\), expected \(T, 16\)"),
        (features[0], r"shape \(16,\), expected \(T, 16\)"),
        (features[None], r"shape \(1, 150, 16\), expected \(T, 16\)"),
    ]
    recognizer = StreamingRecognizer(model)
    for wrong, message in cases:
        with pytest.raises(ValueError, match=message):
            recognizer.push_features(wrong)
        assert (recognizer.heard_s, recognizer.tokens) == (0, [])
    assert said(stream(recognizer, samples, 4000)) == runs(model, samples)
    recognizer.reset()
    found = recognizer.push_features(features[:70])
    heard = recognizer.heard_s
    for wrong, message in cases:
        with pytest.raises(ValueError, match=message):
            recognizer.push_features(wrong)
        assert recognizer.heard_s == heard
    with pytest.raises(ValueError, match="the stream began with features: it takes no samples"):
        recognizer.push(samples)
    assert recognizer.heard_s == heard
    assert said(found + recognizer.push_features(features[70:]) + recognizer.flush()) == runs(model, samples)


def test_other_refusals(model):
    recognizer = StreamingRecognizer(model)
    with pytest.raises(ValueError, match="samples at 8000 Hz, expected the model's rate: 16000 Hz"):
        recognizer.push(sound(), 8000)
    assert recognizer.heard_s == 0
    assert recognizer.push(np.zeros(0, np.float32)) == []
    assert recognizer.flush() == []  # nothing was heard
    for call in (recognizer.flush, lambda: recognizer.push(sound())):
        with pytest.raises(ValueError, match=r"the stream was flushed: reset\(\) begins another one"):
            call()
    recognizer.reset()
    assert recognizer.push(sound())


def test_models_that_take_no_streams(model, tmp_path):
    small = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "subsampling_channels": 3, "kernel_size": 3}
    with pytest.raises(ValueError, match=r"need a streaming encoder .* the system has a conformer"):
        StreamingRecognizer(make_model(encoder=ConformerConfig(first_layers=1, second_layers=1, **small)))
    with pytest.raises(ValueError, match="not made of audio"):
        StreamingRecognizer(Model(model.system, model.tokenizers, None, None, {}))
    save_model(tmp_path, model.system, model.tokenizers, model.features)
    found = stream(StreamingRecognizer.from_directory(tmp_path), sound(), 4000)
    assert said(found) == runs(model, sound())
    diverged = make_model()
    with torch.no_grad():
        diverged.system.heads["transcript"].bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"non-finite weights \(heads\.transcript\.bias\)"):
        StreamingRecognizer(diverged)
