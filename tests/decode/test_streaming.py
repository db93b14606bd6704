"""The streaming recognizer against the offline one, with an untrained model that talks a lot."""

from itertools import pairwise

import kaldi_native_fbank
import numpy as np
import pytest
import torch

from brctc.data import FbankStream, FeatureConfig, TokenConfig, Tokenizer, fbank, pad
from brctc.data.features import _options
from brctc.decode import Recognizer, StreamingRecognizer, push_together
from brctc.models import ConformerConfig, EmformerConfig, Model, System, SystemConfig, save_model
from tests.data.sounds import RATE, noise

SECONDS = 3.21


def make_model(seed=0, subsampling=4, dither=0.0, encoder=None):
    torch.manual_seed(seed)
    sizes = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "subsampling_channels": 3}
    contexts = {"chunk_frames": 4, "left_context_frames": 4, "right_context_frames": 2, "memory_size": 2}
    encoder = encoder or EmformerConfig(subsampling=subsampling, layers=2, **contexts, **sizes)
    tokenizer = Tokenizer.train(["one two", "six"], TokenConfig(kind="char"))
    features = FeatureConfig(num_bins=16, dither=dither)
    system = System(SystemConfig(encoder=encoder), features.num_bins, {"transcript": tokenizer.size})
    known = torch.from_numpy(fbank(noise(2.0, 9), features))
    system.set_statistics(known.mean(0), known.std(0))
    return Model(system.eval(), {"transcript": tokenizer}, features, None, {})


@pytest.fixture(scope="module")
def model():
    return make_model()


def sound(seed=0, seconds=SECONDS):
    """Noise that changes every 30 ms, and stays what it is for longer in between."""
    generator = np.random.default_rng(seed)
    levels = np.repeat(generator.choice([0.01, 0.1, 1.0], round(seconds / 0.03) + 1), round(0.03 * RATE))
    samples = noise(seconds, seed)
    return samples * levels[: len(samples)].astype(np.float32)


def offline(model, samples):
    """Tokens, first frames, and where runs end in seconds."""
    features = fbank(samples, model.features)
    (found,) = Recognizer(model).recognize([("x", features)], "ctc-greedy")
    # features have their own duration, in whole frames
    return found.tokens, found.frames, [min(time.end_s, len(samples) / RATE) for time in found.token_times]


def runs(model, samples):
    """(token, first frame, last frame) from the offline path itself, frame by frame."""
    features = torch.from_numpy(fbank(samples, model.features))
    with torch.inference_mode():
        path = model.system.encode(pad([features])).logits().values[0].argmax(-1).tolist()
    borders = [0] + [t for t in range(1, len(path)) if path[t] != path[t - 1]] + [len(path)]
    return [(path[a], a, b - 1) for a, b in pairwise(borders) if path[a]]


def stream(recognizer, samples, size):
    """Everything that pushes of one size, and the flush, have said."""
    fired = []
    for first in range(0, len(samples), size):
        fired += recognizer.push(samples[first : first + size])
    return fired + recognizer.flush()


def said(tokens):
    return [(token.token, token.first_frame, token.last_frame) for token in tokens]


@pytest.mark.parametrize("size", [37, 160, 1000, 5120, 16001, 10**6])
def test_any_split_is_the_whole(model, size):
    samples = sound()
    recognizer = StreamingRecognizer(model)
    found = stream(recognizer, samples, size)
    assert said(found) == runs(model, samples)
    tokens, frames, ends = offline(model, samples)
    assert len(tokens) > 20
    assert any(token.last_frame > token.first_frame for token in found)
    assert [token.token for token in found] == tokens == recognizer.tokens
    assert [token.first_frame for token in found] == frames
    assert [token.end_s for token in found] == pytest.approx(ends)
    assert [token.piece for token in found] == [model.tokenizer.pieces[token] for token in tokens]
    assert recognizer.text == model.tokenizer.decode(tokens)


def test_single_samples(model):
    samples = sound(1, 0.5)
    recognizer = StreamingRecognizer(model)
    assert said(stream(recognizer, samples, 1)) == runs(model, samples)


def test_a_thousand_random_pushes(model):
    samples = sound(2)
    sizes = np.diff([0, *sorted(np.random.default_rng(0).integers(0, len(samples), 999)), len(samples)])
    recognizer, found, first = StreamingRecognizer(model), [], 0
    for size in sizes.tolist():  # some are empty
        found += recognizer.push(samples[first : first + size])
        first += size
    assert said(found + recognizer.flush()) == runs(model, samples)


@pytest.mark.parametrize("subsampling", [1, 2])
@pytest.mark.parametrize("dither", [0.0, 0.01])
def test_other_frames(subsampling, dither):
    model = make_model(3, subsampling, dither)
    for seconds in (0.004, 0.005, 0.0743, 0.2, 1.0):  # the first has no frame
        samples = sound(4, seconds)
        recognizer = StreamingRecognizer(model)
        found = stream(recognizer, samples, 333)
        if len(fbank_or_nothing(samples, model)) < (1 if subsampling == 1 else 7):
            assert (found, recognizer.text) == ([], "")
        else:
            assert said(found) == runs(model, samples)
            assert [token.end_s for token in found] == pytest.approx(offline(model, samples)[2])


def fbank_or_nothing(samples, model):
    stream = FbankStream(model.features)
    return np.concatenate([stream.push(samples), stream.finish()])


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_text_of_words_and_pieces(kind):
    model = make_model()
    texts = ["one two six", "two one", "sixty one"]
    tokenizer = Tokenizer.train(texts, TokenConfig(kind=kind, size=16 if kind == "bpe" else None))
    system = System(model.system.config, 16, {"transcript": tokenizer.size}).eval()
    model = Model(system, {"transcript": tokenizer}, model.features, None, {})
    recognizer = StreamingRecognizer(model)
    found = stream(recognizer, sound(), 800)
    assert recognizer.text == tokenizer.decode([token.token for token in found])
    assert said(found) == runs(model, sound())


def test_tokens_come_as_soon_as_their_chunk(model):
    """A chunk is known when the last window under it and its right context is there."""
    samples, size = sound(), 40
    recognizer = StreamingRecognizer(model)
    window = 160 * (model.system.encoder.window_frames - 1) + 280
    found = []
    for first in range(0, len(samples), size):
        for token in recognizer.push(samples[first : first + size]):
            needed = window + token.first_frame // 4 * 4 * 640
            assert needed <= round(RATE * token.known_s) < needed + size
            assert token.known_s == recognizer.heard_s
            assert token.fired_s == pytest.approx(0.015 + 0.04 * (token.first_frame + 1))
            assert token.latency_s == token.known_s - token.fired_s > 0
            found.append(token)
    recognizer.flush()
    assert all(token.end_s == pytest.approx(0.015 + 0.04 * (token.last_frame + 1)) for token in found)


def test_a_run_over_a_border_is_one_token(model):
    """Its end is filled in when it is known; no second token fires."""
    recognizer = StreamingRecognizer(model)
    logits = torch.eye(model.tokenizer.size)
    (token,) = recognizer.fire(logits[[0, 2, 2]])
    assert token.last_frame is None
    assert recognizer.fire(logits[[2]]) == []
    assert (token.last_frame, token.end_s) == (None, None)
    (second,) = recognizer.fire(logits[[0, 2]])
    assert (token.last_frame, second.first_frame, second.last_frame) == (3, 5, None)
    recognizer.flush()
    assert second.last_frame == 5
    assert recognizer.tokens == [2, 2]


@pytest.mark.parametrize(
    "config",
    [
        FeatureConfig(),
        FeatureConfig(dither=0.01),
        FeatureConfig(num_bins=20, sample_rate=8000, frame_length_ms=64, frame_shift_ms=8),
        FeatureConfig(num_bins=20, frame_length_ms=10),
    ],
)
def test_online_features_are_the_offline_ones(config):
    for length in (1, 79, 80, 200, 401, 9000, 40123):
        samples = sound(length, 3.0)[:length]
        wanted = at_once(samples, config)
        if len(wanted):
            np.testing.assert_array_equal(fbank(samples, config), wanted)
        for size in (7, 160, 4001):
            stream = FbankStream(config)
            parts = [stream.push(samples[first : first + size]) for first in range(0, length, size)]
            np.testing.assert_array_equal(np.concatenate([*parts, stream.finish()]), wanted)


def at_once(samples, config):
    """All samples in one call, as Kaldi computes a file."""
    computer = kaldi_native_fbank.OnlineFbank(_options(config))
    noise = np.random.default_rng(0).standard_normal(len(samples), dtype=np.float32)
    computer.accept_waveform(config.sample_rate, (samples + np.float32(config.dither) * noise).tolist())
    computer.input_finished()
    frames = [computer.get_frame(frame).copy() for frame in range(computer.num_frames_ready)]
    return np.array(frames, np.float32).reshape(-1, config.num_bins)


def test_together_as_alone(model):
    """Streams that start and end at different times."""
    sounds = [sound(seed, 0.7 + 0.4 * seed) for seed in range(5)]
    recognizers = [StreamingRecognizer(model) for _ in sounds]
    waiting = [np.array_split(samples, 20 + 9 * n) for n, samples in enumerate(sounds)]
    found = [[] for _ in sounds]
    turn = 0
    while any(waiting):
        now = [n for n, parts in enumerate(waiting) if parts and turn >= 3 * n]
        pushes = [(recognizers[n], waiting[n].pop(0)) for n in now]
        for n, tokens in zip(now, push_together(pushes), strict=True):
            found[n] += tokens
        for n in now:
            if not waiting[n]:
                found[n] += recognizers[n].flush()
        turn += 1
    for samples, tokens in zip(sounds, found, strict=True):
        assert said(tokens) == runs(model, samples)
    assert push_together([]) == []


def test_together_refused(model):
    one, two = StreamingRecognizer(model), StreamingRecognizer(model)
    with pytest.raises(ValueError, match="a recognizer is there twice"):
        push_together([(one, sound()), (one, sound())])
    with pytest.raises(ValueError, match="different models"):
        push_together([(one, sound()), (StreamingRecognizer(make_model(1)), sound())])
    broken = np.full(1600, np.nan, np.float32)
    with pytest.raises(ValueError, match="push 1: sample 0 of the stream is nan"):
        push_together([(one, sound()), (two, broken)])
    with pytest.raises(ValueError, match="samples at 8000 Hz, expected the model's rate: 16000 Hz"):
        push_together([(one, sound()), (two, sound())], 8000)
    assert one.heard_s == two.heard_s == 0  # all are refused


def test_state_does_not_grow(model):
    """After every push of five seconds, for a minute: what is kept is a state and less than a window."""
    samples = sound(0, 5.0)
    recognizer = StreamingRecognizer(model)
    state = sum(part.untyped_storage().nbytes() for part in recognizer._stream.state)
    waiting = recognizer._stream.encoder.window_frames * model.features.num_bins * 4
    for _ in range(12):
        recognizer.push(samples)
        kept = [*recognizer._stream.state, *recognizer._stream._portions]
        assert sum(part.untyped_storage().nbytes() for part in kept) <= state + waiting
        with pytest.raises((IndexError, RuntimeError, ValueError)):  # the features were dropped
            recognizer._fbank._computer.get_frame(recognizer._fbank._frames - 1)
    assert recognizer.heard_s == 60


def test_reset_begins_anew(model):
    recognizer = StreamingRecognizer(model)
    stream(recognizer, sound(5), 1000)
    recognizer.reset()
    assert (recognizer.text, recognizer.tokens, recognizer.heard_s) == ("", [], 0)
    assert said(stream(recognizer, sound(6), 1000)) == runs(model, sound(6))
    recognizer.reset()
    recognizer.push(sound(5))
    recognizer.reset()  # in the middle
    assert said(stream(recognizer, sound(6), 1000)) == runs(model, sound(6))


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


def test_refused_together_is_heard_by_none(model):
    """One bad push, in whatever place: no stream has heard anything, and all go on as if nothing had been."""
    sounds = [sound(seed, 1.5) for seed in range(3)]
    recognizers = [StreamingRecognizer(model) for _ in sounds]
    first = push_together([(r, samples[:9000]) for r, samples in zip(recognizers, sounds, strict=True)])
    bad = np.full(500, np.inf, np.float32)
    for place in range(3):
        pushes = [
            (r, bad if n == place else samples[9000:])
            for n, (r, samples) in enumerate(zip(recognizers, sounds, strict=True))
        ]
        before = [recognizer.tokens for recognizer in recognizers]
        with pytest.raises(ValueError, match=f"push {place}: sample 9000 of the stream is inf"):
            push_together(pushes)
        assert [recognizer.heard_s for recognizer in recognizers] == [9000 / RATE] * 3
        assert [recognizer.tokens for recognizer in recognizers] == before
    for n, (recognizer, samples) in enumerate(zip(recognizers, sounds, strict=True)):
        found = first[n] + recognizer.push(samples[9000:]) + recognizer.flush()
        assert said(found) == runs(model, samples)


def test_a_model_in_training_hears_nothing():
    """Whatever is pushed or flushed is refused, and counts again when it comes again."""
    model, samples = make_model(), sound(0, 1.5)
    features = fbank(samples, model.features)
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
    features = torch.from_numpy(fbank(samples, model.features))
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
