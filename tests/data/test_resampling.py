"""Resampling in pieces against the whole file's."""

import numpy as np
import pytest

from brctc.data.audio import resample
from brctc.data.resampling import ResamplingStream
from tests.data.sounds import noise


def in_pieces(samples, given, wanted, sizes):
    stream, made, first = ResamplingStream(given, wanted), [], 0
    for size in sizes:
        made.append(stream.push(samples[first : first + size]))
        first += size
    made.append(stream.push(samples[first:]))
    return np.concatenate([*made, stream.finish()]), stream


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (8000, 16000),
        (48000, 16000),
        (44100, 16000),
        (24000, 16000),
        (16000, 8000),
        (11025, 16000),
        (16000, 16001),
    ],
)
@pytest.mark.parametrize("seconds", [0.0001, 0.003, 0.5])
def test_pieces_are_the_whole(given, wanted, seconds):
    samples = noise(seconds, 3, given)
    expected = resample(samples, given, wanted)
    rng = np.random.default_rng(given)
    for sizes in ([], [1] * min(len(samples), 40), rng.integers(0, 900, 30), [len(samples)]):
        found, _ = in_pieces(samples, given, wanted, sizes)
        assert found.dtype == np.float32
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_a_sample_comes_as_soon_as_its_filter_is_covered():
    """Ten samples of the lower rate ahead, and no more is kept than the filter needs."""
    stream, made = ResamplingStream(48000, 16000), 0
    for pushed in range(100, 48001, 100):
        made += len(stream.push(np.zeros(100)))
        assert pushed / 3 - 11 <= made <= pushed / 3 - 10 + 1
        assert len(stream._kept) <= 100 + 62


def test_the_same_rate_is_left_alone():
    samples = noise(0.1)
    stream = ResamplingStream(16000, 16000)
    np.testing.assert_array_equal(stream.push(samples), samples)
    assert len(stream.finish()) == 0


@pytest.mark.parametrize(
    ("rate", "error", "message"),
    [
        (999, ValueError, "a sample rate of 999 Hz, expected 1000 to 1000000 Hz"),
        (16000.0, TypeError, "the sample rate is 16000.0, expected a whole number"),
        (True, TypeError, "the sample rate is True"),
        (
            999983,
            ValueError,
            "999983 Hz cannot be resampled to 16000 Hz as it comes: 999983:16000 is too fine",
        ),
    ],
)
def test_what_is_no_rate(rate, error, message):
    with pytest.raises(error, match=message):
        ResamplingStream(rate, 16000)
