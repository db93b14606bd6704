"""Audio in its own time: by a clock that is waited for, and by one that is not."""

import time

import numpy as np
import pytest
import torch

from brctc.data import FeatureConfig, FeatureStream, extract_features, num_samples_heard
from brctc.decode import RealClock, SimulatedClock, StreamingRecognizer, play
from tests.data.sounds import RATE, noise
from tests.decode.test_streaming import make_model, runs, said, sound


@pytest.fixture(scope="module")
def recognizer():
    recognizer = StreamingRecognizer(make_model())
    recognizer.push(sound())  # the first steps of a process take longer
    return recognizer


def played(recognizer, audio, clock):
    recognizer.reset()
    return list(play(recognizer, audio, clock))


def test_tokens_are_handed_over_when_their_audio_is_there_and_computed(recognizer):
    samples, clock = sound(1), SimulatedClock()
    found = played(recognizer, samples, clock)
    assert said(token for token, _ in found) == runs(recognizer.model, samples)
    for token, handed_s in found:
        assert 0 < handed_s - token.known_s <= clock.computed_s
    assert 0 < clock.computed_s < clock.now_s
    assert clock.now_s >= len(samples) / RATE


def test_features_come_when_their_samples_do(recognizer):
    samples = sound(1)
    wanted = played(recognizer, samples, SimulatedClock())
    found = played(recognizer, extract_features(samples, recognizer.features), SimulatedClock())
    assert said(token for token, _ in found) == said(token for token, _ in wanted)
    for (token, _), (other, _) in zip(found, wanted, strict=True):
        # samples come in blocks, so up to one of them is waited for; the last windows reach beyond the end
        assert min(token.known_s, len(samples) / RATE) <= other.known_s < token.known_s + 0.0101
        assert token.end_s == pytest.approx(other.end_s, abs=0.01)


@pytest.mark.parametrize("config", [FeatureConfig(), FeatureConfig(frame_length_ms=10, sample_rate=8000)])
def test_samples_under_the_windows(config):
    """A frame is there with the last sample of its window, and not before."""
    samples = noise(0.2)
    assert num_samples_heard(0, config) == 0
    for frames in (1, 2, 7, 15):
        heard = num_samples_heard(frames, config)
        assert len(FeatureStream(config).push(samples[:heard])) == frames
        assert len(FeatureStream(config).push(samples[: heard - 1])) == frames - 1


def test_blocks_as_a_microphone_gives_them(recognizer):
    samples = sound(1)
    blocks = (samples[first : first + 160] for first in range(0, len(samples), 160))
    found = played(recognizer, blocks, SimulatedClock())
    wanted = played(recognizer, samples, SimulatedClock())
    assert [token for token, _ in found] == [token for token, _ in wanted]


def test_in_real_time(recognizer):
    samples = sound(2, 0.6)
    start = time.perf_counter()
    clock = RealClock(now_s=0.01)
    found = played(recognizer, samples, clock)
    assert time.perf_counter() - start >= 0.58
    assert said(token for token, _ in found) == runs(recognizer.model, samples)
    assert all(handed_s > token.known_s for token, handed_s in found)
    assert 0 < clock.computed_s < clock.now_s


def test_simulated_time():
    clock = SimulatedClock()
    clock.wait_until(3.0)
    assert clock.compute(lambda: "done") == "done"
    clock.wait_until(2.0)  # has passed
    assert 3.0 <= clock.now_s < 3.1
    clock.compute(lambda: time.sleep(0.2))  # no computation
    assert clock.computed_s < 0.1

    def work():
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    clock.compute(work)
    assert 0.05 <= clock.computed_s < 0.15
    assert clock.now_s == pytest.approx(3.0 + clock.computed_s)


def test_samples_or_features(recognizer):
    features = torch.from_numpy(extract_features(sound(), recognizer.features))
    recognizer.reset()
    recognizer.push(sound())
    with pytest.raises(ValueError, match="the stream began with samples: it takes no features"):
        recognizer.push_features(features)
    recognizer.reset()
    recognizer.push_features(features[:50])
    with pytest.raises(ValueError, match="the stream began with features: it takes no samples"):
        recognizer.push(sound())
    with pytest.raises(ValueError, match="a feature is not finite"):
        recognizer.push_features(features.log())
    with pytest.raises(ValueError, match=r"shape \(50, 3\), expected \(T, 16\)"):
        recognizer.push_features(features[:50, :3])
    recognizer.push_features(features[50:])
    recognizer.flush()
    with pytest.raises(ValueError, match="the stream was flushed"):
        recognizer.push_features(features)
    assert recognizer.tokens == [token for token, *_ in runs(recognizer.model, sound())]
    assert np.isclose(recognizer.heard_s, num_samples_heard(len(features), recognizer.features) / RATE)
