"""The filterbank against a computation of its own, written from Kaldi's definition."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from brctc.data import FeatureConfig, extract_features
from brctc.data.features import StoredFeatures, features_to_store, num_frames
from tests.data.sounds import noise


def mel(frequency):
    return 1127 * np.log1p(np.asarray(frequency) / 700)


def direct_fbank(
    samples: np.ndarray, bins: int, rate: int, length: int, shift: int, low: float, high: float
) -> np.ndarray:
    """Centred frames (mirrored at the ends), no DC, pre-emphasis, Povey's window, power, mel triangles."""
    samples = samples.astype(np.float64)
    frames = (len(samples) + shift // 2) // shift
    start = np.arange(frames)[:, None] * shift + shift // 2 - length // 2
    index = start + np.arange(length)
    index = np.where(index < 0, -index - 1, index)
    index = np.where(index >= len(samples), 2 * len(samples) - 1 - index, index)
    frame = samples[index]
    frame = frame - frame.mean(1, keepdims=True)
    frame = np.concatenate([frame[:, :1] * (1 - 0.97), frame[:, 1:] - 0.97 * frame[:, :-1]], 1)
    frame *= (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))) ** 0.85
    size = 1 << (length - 1).bit_length()
    power = np.abs(np.fft.rfft(frame, size)) ** 2
    edges = np.linspace(mel(low), mel(high), bins + 2)
    position = mel(np.arange(size // 2 + 1) * rate / size)[:, None]
    up = (position - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - position) / (edges[2:] - edges[1:-1])
    weights = np.clip(np.minimum(up, down), 0, None)
    weights[-1] = 0  # Kaldi leaves the highest frequency out
    return np.log(np.maximum(power @ weights, np.finfo(np.float32).eps))


@pytest.mark.parametrize(
    ("config", "seconds", "limits"),
    [
        (FeatureConfig(), 1.234, (20, 7600)),
        (FeatureConfig(num_bins=40, sample_rate=8000, frame_length_ms=20), 0.7, (20, 3600)),
        (FeatureConfig(high_hz=0), 0.5, (20, 8000)),
        (FeatureConfig(low_hz=100, high_hz=6000), 0.5, (100, 6000)),
    ],
)
def test_equals_the_definition(config, seconds, limits):
    samples = noise(seconds, rate=config.sample_rate)
    length = round(config.sample_rate * config.frame_length_ms / 1000)
    shape = config.num_bins, config.sample_rate, length, config.shift_samples
    expected = direct_fbank(samples, *shape, *limits)
    found = extract_features(samples, config)
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("samples", [80, 100, 239, 240, 399, 400, 16000, 16079, 16080])
def test_number_of_frames(samples):
    config = FeatureConfig()
    assert (
        len(extract_features(noise(1.1)[:samples], config))
        == num_frames(samples, config)
        == (samples + 80) // 160
    )


def test_a_tone_peaks_in_its_bin():
    samples = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    centres = np.linspace(mel(20), mel(7600), 82)[1:-1]
    assert (
        abs(extract_features(samples, FeatureConfig())[50].argmax() - np.abs(centres - mel(1000)).argmin())
        <= 1
    )


def test_silence_is_finite_and_too_little_is_refused():
    assert np.isfinite(extract_features(np.zeros(1600, np.float32), FeatureConfig())).all()
    with pytest.raises(ValueError, match="79 samples make no frame, expected 80 or more"):
        extract_features(np.zeros(79, np.float32), FeatureConfig())
    with pytest.raises(ValueError, match="one dimension"):
        extract_features(np.zeros((100, 2), np.float32), FeatureConfig())


def test_dither_is_the_same_every_time():
    config = FeatureConfig(dither=1e-3)
    found = extract_features(np.zeros(1600, np.float32), config)
    np.testing.assert_array_equal(found, extract_features(np.zeros(1600, np.float32), config))
    assert found.std() > 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 80}, "bins"),
        ({"num_bins": 0}, "num_bins"),
        ({"frame_shift_ms": 30}, "gaps between the frames"),
        ({"sample_rate": 11025}, "not a whole number of samples at 11025 Hz"),
        ({"high_hz": 8001}, "low_hz 20 and high_hz 8001 are no limits of a filterbank at 16000 Hz"),
        ({"low_hz": 7600}, "no limits of a filterbank"),
        ({"high_hz": -8000}, "no limits of a filterbank"),
    ],
)
def test_impossible_configurations(options, message):
    with pytest.raises(ValidationError, match=message):
        FeatureConfig(**options)


def test_what_was_stored_before_keeps_its_limits():
    """Configs were written down without limits, and their splits have keys made of that."""
    limits = {"low_hz", "high_hz"}
    before = {name: value for name, value in FeatureConfig().model_dump().items() if name not in limits}
    found = TypeAdapter(StoredFeatures).validate_python(before)
    assert found == FeatureConfig(high_hz=0)
    assert list(features_to_store(found).items()) == list(before.items())
    for config in (FeatureConfig(), FeatureConfig(low_hz=0, high_hz=0)):
        assert TypeAdapter(StoredFeatures).validate_python(features_to_store(config)) == config
    assert TypeAdapter(StoredFeatures).validate_python(None) is None
