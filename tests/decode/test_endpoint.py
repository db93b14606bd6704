"""Segments: where they end, and that they do not depend on how the audio is pushed."""

import pytest
import torch

from brctc.data.audio import resample
from brctc.decode import EndpointRules, OnlineRecognizer, Recognizer, StreamingRecognizer
from brctc.decode.endpoint import NEVER
from brctc.decode.greedy_stream import GreedyDecoder
from brctc.models import Model
from tests.data.sounds import noise, write
from tests.decode.streams import make_model, runs, said, sound, stream

FRAME_S = 0.04


@pytest.fixture(scope="module")
def model():
    return make_model()


def decode(model, path, rules, size):
    """Segments of a path of classes, so many frames at a time."""
    decoder = GreedyDecoder(model.tokenizer, (0.0, FRAME_S), rules)
    logits = torch.eye(model.tokenizer.size)[path]
    for first in range(0, len(path), size):
        decoder.decode(logits[first : first + size], FRAME_S * min(first + size, len(path)))
    decoder.finish(FRAME_S * len(path))
    return decoder.pop_segments(), decoder


def show(segments):
    return [
        ([token.token for token in s.tokens], round(s.start_s, 9), round(s.end_s, 9), s.reason)
        for s in segments
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_three_rules(model, size):
    rules = EndpointRules(silence_s=0.8, pause_s=0.2, longest_s=2.0)
    path = [0] * 21 + [2, 2, 0, 3] + [0] * 4 + [4] + [0] * 30 + [5] * 60 + [0, 6]
    segments, decoder = decode(model, path, rules, size)
    # silence from frame 0 restarts at 20; a pause of 4 frames is none, of 5 is one; then silence again;
    # a run that is cut goes on without a second token
    assert show(segments) == [
        ([2, 3, 4], 0.8, 1.4, "pause"),
        ([5], 2.2, 4.2, "length"),
        ([6], 4.2, 4.88, "end"),
    ]
    assert decoder.tokens == [2, 3, 4, 5, 6]
    assert [s.number for s in segments] == [0, 1, 2]
    assert segments[0].text == model.tokenizer.decode([2, 3, 4])
    first, *_, last = segments[0].token_times
    assert (first.start_s, first.end_s) == pytest.approx((0.84, 0.92))
    assert (last.start_s, last.end_s) == pytest.approx((1.16, 1.2))
    assert segments[0].latency_s == pytest.approx(segments[0].known_s - 1.2)
    if size == 1:
        assert segments[0].latency_s == pytest.approx(0.2)


def test_rules_that_never_hold(model):
    path = [2, 0, 3] + [0] * 2000 + [2]
    segments, _ = decode(model, path, NEVER, 50)
    assert [(s.tokens[-1].token, s.reason) for s in segments] == [(2, "end")]
    assert decode(model, [0] * 500, EndpointRules(), 10)[0] == []  # nothing said is no segment
    with pytest.raises(ValueError, match="pause_s is 0, expected more than 0, or None"):
        EndpointRules(pause_s=0)


@pytest.mark.parametrize("size", [333, 16000, 10**6])
def test_segments_of_audio(model, size):
    """All tokens are in them, in order, whatever the pushes; their words are those of `Recognizer`."""
    samples = sound(0, 6.0)
    online = OnlineRecognizer(model, EndpointRules(pause_s=0.12, longest_s=1.0))
    recognizer = online.create_stream()
    found = stream(recognizer, samples, size)
    segments = recognizer.pop_segments()
    assert len(segments) > 5
    assert {s.reason for s in segments} >= {"length"}
    assert [token for s in segments for token in s.tokens] == found
    assert said(found) == runs(model, samples)
    assert recognizer.pop_segments() == []
    whole = online.create_stream()
    stream(whole, samples, 1000)
    assert show(whole.pop_segments()) == show(segments)


def test_times_are_the_offline_ones(model, tmp_path):
    samples = sound(0, 2.0)
    recognizer = OnlineRecognizer(model, NEVER).create_stream()
    stream(recognizer, samples, 700)
    (segment,) = recognizer.pop_segments()
    (offline,) = Recognizer(model).recognize([write(tmp_path / "x.flac", samples)], "ctc-greedy")
    assert segment.text == offline.text
    assert [w.word for w in segment.word_times] == [w.word for w in offline.word_times]
    for mine, theirs in (
        (segment.word_times, offline.word_times),
        (segment.token_times, offline.token_times),
    ):
        assert [t[1:] for t in mine] == [pytest.approx(t[1:]) for t in theirs]


@pytest.mark.parametrize("rate", [8000, 44100, 48000])
def test_another_rate_as_its_file(model, rate):
    samples = noise(2.0, 5, rate)
    wanted = stream(StreamingRecognizer(model), resample(samples, rate, 16000), 1000)
    recognizer = StreamingRecognizer(model, sample_rate=rate)
    found = stream(recognizer, samples, 777)
    assert recognizer.heard_s == 2.0
    assert len(found) > 5
    assert said(found) == said(wanted)
    with pytest.raises(ValueError, match=f"samples at 16000 Hz, expected the stream's rate: {rate} Hz"):
        StreamingRecognizer(model, sample_rate=rate).push(samples, 16000)


class OtherEngine:
    """What streams need of a system, and nothing else: no network."""

    def __init__(self, system):
        self.config, self.input_size, self.vocab_sizes = system.config, system.input_size, system.vocab_sizes
        self.dtype, self.device = system.dtype, system.device
        self._system = system

    def initial_state(self, streams):
        return self._system.initial_state(streams)

    def join_states(self, states):
        return self._system.join_states(states)

    def step(self, features, lengths, state):
        return self._system.step(features, lengths, state)


def test_a_system_of_another_engine(model):
    other = Model(OtherEngine(model.system), model.tokenizers, model.features, None, {})
    recognizer = StreamingRecognizer(other)
    assert said(stream(recognizer, sound(), 2000)) == runs(model, sound())
