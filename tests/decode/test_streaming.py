"""The streaming recognizer against the offline one, with an untrained model that talks a lot."""

import kaldi_native_fbank
import numpy as np
import pytest
import torch

from brctc.data import FeatureConfig, FeatureStream, TokenConfig, Tokenizer, extract_features
from brctc.data.features import _options
from brctc.decode import Recognizer, StreamingRecognizer, flush_together, push_together
from brctc.models import Model, System
from tests.data.sounds import RATE
from tests.decode.streams import make_model, runs, said, sound, stream


@pytest.fixture(scope="module")
def model():
    return make_model()


def offline(model, samples):
    """Tokens, first frames, and where runs end in seconds."""
    features = extract_features(samples, model.features)
    (found,) = Recognizer(model).recognize([("x", features)], "ctc-greedy")
    # features have their own duration, in whole frames
    return found.tokens, found.frames, [min(time.end_s, len(samples) / RATE) for time in found.token_times]


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
    stream = FeatureStream(model.features)
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
            np.testing.assert_array_equal(extract_features(samples, config), wanted)
        for size in (7, 160, 4001):
            stream = FeatureStream(config)
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
        done = [n for n in now if not waiting[n]]
        for n, tokens in zip(done, flush_together([recognizers[n] for n in done]), strict=True):
            found[n] += tokens
        turn += 1
    for samples, tokens in zip(sounds, found, strict=True):
        assert said(tokens) == runs(model, samples)
    assert push_together([]) == flush_together([]) == []


def test_state_does_not_grow(model):
    """After every push of five seconds, for a minute: what is kept is a state and less than a window."""
    samples = sound(0, 5.0)
    recognizer = StreamingRecognizer(model)
    encoder, fbank = recognizer.audio.encoder, recognizer.audio.features._fbank
    state = sum(part.untyped_storage().nbytes() for part in encoder.state)
    waiting = model.system.encoder.window_frames * model.features.num_bins * 4
    for _ in range(12):
        recognizer.push(samples)
        kept = [*encoder.state, *encoder._portions]
        assert sum(part.untyped_storage().nbytes() for part in kept) <= state + waiting
        with pytest.raises((IndexError, RuntimeError, ValueError)):  # the features were dropped
            fbank._computer.get_frame(fbank._frames - 1)
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
