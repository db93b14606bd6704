"""Pitch: right on tones, the path is the cheapest one, streams are files, and Praat agrees."""

import numpy as np
import parselmouth
import pytest
from numpy.testing import assert_array_equal

from brctc import _native
from brctc.data import FeatureConfig, FeatureStream, extract_features, num_samples_heard
from brctc.data.features import num_frames
from brctc.data.manifest import read_manifest
from brctc.data.pitch import JUMP, RATE, STEP, PitchStream, PitchTracker, Resampler, Track
from brctc.data.recordings import read_by_file
from tests.data.sounds import DATA, needs, noise

SHIFT_MS = 10.0


def glide(first_hz, last_hz, seconds, rate=16000):
    """A voice-like tone with seven harmonics, and its frequency at every sample."""
    time = np.arange(round(seconds * rate)) / rate
    frequency = first_hz * (last_hz / first_hz) ** (time / seconds)
    phase = 2 * np.pi * np.cumsum(frequency) / rate
    return (0.1 * sum(np.sin(k * phase) / k for k in range(1, 8))).astype(np.float32), frequency


def raw_track(samples, rate, look_ahead=None):
    """(T) NCCF and Hz, before what is made of them for a model."""
    tracker = PitchTracker(rate, SHIFT_MS, look_ahead)
    frames = num_frames(len(samples), FeatureConfig(sample_rate=rate))
    tracks = tracker.push(samples), tracker.finish(frames)
    nccf, log_pitch = (np.concatenate(parts) for parts in zip(*tracks, strict=True))
    assert len(nccf) == frames
    return nccf, np.exp(log_pitch)


@pytest.mark.parametrize("look_ahead", [None, 10])
@pytest.mark.parametrize("rate", [8000, 16000, 44100])
@pytest.mark.parametrize(("first_hz", "last_hz"), [(100, 100), (220, 220), (80, 300), (350, 120)])
def test_tones(first_hz, last_hz, rate, look_ahead):
    samples, frequency = glide(first_hz, last_hz, 1.5, rate)
    nccf, found = raw_track(samples, rate, look_ahead)
    middles = ((np.arange(len(found)) + 0.5) * rate * SHIFT_MS / 1000).astype(int)
    error = found[10:-10] / frequency[middles[10:-10]] - 1
    assert np.abs(error).max() < 0.012  # lags are 0.5% apart, and the pitch moves within a window
    assert nccf[10:-10].min() > 0.9


def gross_errors(samples, rate):
    """Against Praat: by more than a fifth, and how many frames it calls voiced."""
    _, found = raw_track(samples, rate)
    pitch = parselmouth.Sound(samples.astype(float), rate).to_pitch(time_step=SHIFT_MS / 1000)
    middles = (np.arange(len(found)) + 0.5) * SHIFT_MS / 1000
    theirs = np.array([pitch.get_value_at_time(float(middle)) for middle in middles])
    voiced = ~np.isnan(theirs)
    return (np.abs(found[voiced] / theirs[voiced] - 1) > 0.2).sum(), voiced.sum()


@pytest.mark.parametrize(("first_hz", "last_hz"), [(100, 100), (80, 300), (350, 120)])
def test_praat_agrees_on_tones(first_hz, last_hz):
    wrong, voiced = gross_errors(glide(first_hz, last_hz, 1.5)[0], 16000)
    assert (wrong, voiced > 130) == (0, True)


@needs("librispeech")
def test_praat_agrees_on_speech():
    """benchmarks/pitch.py has 100 recordings, and WORLD beside it."""
    rows = read_manifest(DATA / "librispeech" / "manifest.tsv")[::300]
    wrong, voiced = np.sum([gross_errors(*audio) for _, audio in read_by_file(rows)], axis=0)
    assert voiced > 3000
    assert wrong / voiced < 0.05


def test_noise_is_less_voiced():
    tone, _ = glide(150, 170, 1.0)
    voiced, _ = raw_track(tone, 16000)
    unvoiced, _ = raw_track(np.random.default_rng(0).standard_normal(16000).astype(np.float32), 16000)
    assert np.median(unvoiced) < 0.6
    assert np.median(voiced) > 0.95
    features = [
        extract_features(samples, FeatureConfig(pitch=True))[:, 80] for samples in (tone, noise(1.0, 1))
    ]
    assert np.median(features[0]) < -1 < np.median(features[1])  # Kaldi's measure is low for voices


def test_the_path_is_the_cheapest():
    """Against all pairs of states, in whatever parts the frames come."""
    rng = np.random.default_rng(1)
    factor = JUMP * np.log(1 + STEP) ** 2
    for states, scale in ((1, 1.0), (2, 1.0), (50, 0.001), (200, 0.02), (417, 1.0)):
        local = scale * rng.random((40, states))
        cost, jumps = np.zeros(states), factor * np.subtract.outer(np.arange(states), np.arange(states)) ** 2
        total, parents, best = np.zeros(states), np.empty((40, states), np.int32), np.empty(40, np.int32)
        for first, last in ((0, 1), (1, 1), (1, 25), (25, 40)):
            part = (parents[first:last], best[first:last])
            _native.track_pitch(np.ascontiguousarray(local[first:last]), total, factor, *part)
        for t in range(40):
            through = cost[None] + jumps
            np.testing.assert_allclose(through[np.arange(states), parents[t]], through.min(1), atol=1e-12)
            cost = local[t] + through.min(1)
            cost -= cost.min()
            assert cost[best[t]] == pytest.approx(0, abs=1e-12)
        np.testing.assert_allclose(total, cost, atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [{"local": np.zeros((2, 3))}, {"cost": np.zeros(5)}, {"factor": 0.0}, {"best": np.zeros(3, "i4")}],
)
def test_what_does_not_fit_is_refused(change):
    fits = {
        "local": np.zeros((2, 4)),
        "cost": np.zeros(4),
        "factor": 1.0,
        "parents": np.zeros((2, 4), np.int32),
        "best": np.zeros(2, np.int32),
    }
    _native.track_pitch(**fits)
    with pytest.raises(ValueError, match=r"do not fit|positive"):
        _native.track_pitch(**fits | change)


@pytest.mark.parametrize("look_ahead", [0, 3, None])
def test_a_track_is_decided_as_late_as_it_says(look_ahead):
    rng = np.random.default_rng(2)
    lags = PitchTracker(16000, SHIFT_MS).lags
    local = 0.02 * rng.random((30, len(lags.seconds)))
    whole = Track(lags, None)
    assert len(whole.push(local)) == 0
    late = Track(lags, look_ahead)
    decided = [late.push(part) for part in np.split(local, [1, 2, 3, 10, 10, 29])]
    for count, part in zip((1, 1, 1, 7, 0, 19, 1), decided, strict=True):
        assert len(part) <= count
    decided.append(late.finish())
    found = np.concatenate(decided)
    assert len(found) == 30
    if look_ahead is None:
        assert_array_equal(found, whole.finish())
        return
    for t in range(30 - look_ahead):  # as if the end were there
        shorter = Track(lags, None)
        shorter.push(local[: t + look_ahead + 1])
        assert found[t] == shorter.finish()[t]


def test_streams_have_the_values_of_files():
    rng = np.random.default_rng(3)
    for rate, shift in ((16000, 10), (8000, 10), (22050, 20), (48000, 12.5)):
        config = FeatureConfig(
            num_bins=20, sample_rate=rate, frame_shift_ms=shift, pitch=True, pitch_look_ahead_frames=7
        )
        samples = glide(90, 240, 1.0, rate)[0] + 0.01 * rng.standard_normal(rate).astype(np.float32)
        whole = extract_features(samples, config)
        assert whole.shape == (num_frames(rate, config), 23)
        for cuts in (rng.integers(0, rate, 30), [1, 2, 3], [rate - 1]):
            stream = FeatureStream(config)
            parts = [stream.push(part) for part in np.split(samples, np.sort(cuts))]
            assert_array_equal(np.concatenate([*parts, stream.finish()]), whole)


def test_a_stream_says_what_it_has_heard():
    config = FeatureConfig(num_bins=20, pitch=True, pitch_look_ahead_frames=5)
    samples = noise(1.0, 4)
    for frames in (1, 2, 17, 60):
        heard = num_samples_heard(frames, config)
        assert len(FeatureStream(config).push(samples[:heard])) == frames
        assert len(FeatureStream(config).push(samples[: heard - 1])) == frames - 1


def test_memory_of_a_stream_does_not_grow():
    stream = PitchStream(16000, SHIFT_MS, 10)
    for _ in range(30):
        stream.push(noise(1.0, 5))
    tracker = stream._tracker
    assert tracker._wave._kept.shape[1] < 1000
    assert len(tracker._nccf) < 30
    assert len(stream._post._nccf) < 200
    assert len(tracker._track._parents) < 30
    assert len(tracker._resampler._kept) < 100


@pytest.mark.parametrize("seconds", [0.006, 0.02, 0.1])
def test_short_and_silent_audio(seconds):
    config = FeatureConfig(pitch=True)
    for samples in (np.zeros(round(16000 * seconds), np.float32), noise(seconds, 6)):
        found = extract_features(samples, config)
        assert found.shape == (num_frames(len(samples), config), 83)
        assert np.isfinite(found).all()


def test_resampling_keeps_what_is_low_and_drops_what_is_high():
    time = np.arange(16000) / 16000
    gains = []
    for hertz in (100, 300, 1900):
        resampler = Resampler(16000)
        made = np.concatenate([resampler.push(np.sin(2 * np.pi * hertz * time)), resampler.finish()])
        assert len(made) == RATE
        gains.append(np.abs(made[100:-100]).max())
    assert gains[1] > 0.9 * gains[0]
    assert gains[2] < 0.2 * gains[0]


def test_pitch_has_to_be_asked_for():
    with pytest.raises(ValueError, match="pitch_look_ahead_frames is of pitch, which is not asked for"):
        FeatureConfig(pitch_look_ahead_frames=5)
    assert (FeatureConfig().dim, FeatureConfig(pitch=True).dim) == (80, 83)
