"""Audio arrives mono, at the rate that was asked for; bad files are named."""

import logging
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from brctc.data import AudioError, audio, load_audio
from brctc.data.audio import AudioFile, decode_audio
from brctc.data.shards import encode_audio
from tests.data.sounds import RATE, cut_off, noise, set_flac_total, set_wav_rate, write


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_whole_and_part(tmp_path, suffix):
    path = write(tmp_path / f"a.{suffix}", noise(0.5))
    whole = load_audio(path, RATE)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(whole, noise(0.5), atol=1 / 2**15)
    np.testing.assert_array_equal(load_audio(path, RATE, 1000, 500), whole[1000:1500])
    np.testing.assert_array_equal(load_audio(path, RATE, 7000), whole[7000:])


def test_parts_in_any_order(tmp_path):
    whole = load_audio(path := write(tmp_path / "a.flac", noise(2)), RATE)
    with AudioFile(path) as file:
        for start in (16000, 0, 500, 31990, 10):
            np.testing.assert_array_equal(file.read(start, 10), whole[start : start + 10])


def test_channels_are_averaged(tmp_path):
    left, right = noise(0.1, 1), noise(0.1, 2)
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([left, right], 1), RATE, subtype="FLOAT")
    np.testing.assert_allclose(load_audio(path, RATE), (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 44100, 48000])
def test_another_rate_is_resampled_with_one_notice(tmp_path, caplog, rate):
    audio._notice.cache_clear()
    tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32) / 2
    path = write(tmp_path / "tone.wav", tone, rate)
    with caplog.at_level(logging.WARNING, "brctc.data"):
        samples = load_audio(path, RATE)
        load_audio(path, RATE)
    assert [record.getMessage() for record in caplog.records] == [
        f"audio at {rate} Hz is resampled to {RATE} Hz"
    ]
    assert len(samples) == RATE
    expected = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE) / 2
    np.testing.assert_allclose(samples[500:-500], expected[500:-500], atol=2e-3)


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_speed_changes_length_and_pitch(speed):
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    played = audio.change_speed(tone, speed)
    assert abs(len(played) - RATE / speed) <= 1
    spectrum = np.abs(np.fft.rfft(played * np.hanning(len(played))))
    assert abs(spectrum.argmax() * RATE / len(played) - 1000 * speed) < 2
    np.testing.assert_array_equal(audio.change_speed(tone, 1.0), tone)


def test_bad_files_are_named(tmp_path):
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.flac").write_text("this is a letter, not audio")
    write(tmp_path / "none.wav", noise(0))
    cut_off(write(tmp_path / "cut.wav", noise(1)))
    cut_off(write(tmp_path / "cut.flac", noise(1)))
    soundfile.write(tmp_path / "nan.wav", np.array([0, np.nan, 0], np.float32), RATE, subtype="FLOAT")
    (tmp_path / "bare.raw").write_bytes(bytes(1000))
    soundfile.write(tmp_path / "unscaled.wav", np.array([0, 1, 1200], np.float32), RATE, subtype="FLOAT")
    reasons = {
        "missing.wav": "no such file",
        "empty.wav": "the file is empty",
        "text.flac": "not readable as audio",
        "none.wav": "no samples",
        "cut.wav": "truncated: 15978 of 32000 bytes",
        "cut.flac": "truncated",
        "nan.wav": "sample 1 is nan, expected -1 to 1",
        ".": "is a directory",
        "bare.raw": "audio without a header",
        "unscaled.wav": r"sample 2 is 1200, expected -1 to 1: are these 16-bit samples\?",
    }
    for name, reason in reasons.items():
        with pytest.raises(AudioError, match=f"{tmp_path / name}: .*{reason}"):
            load_audio(tmp_path / name, RATE)


def test_the_sound_part_of_a_truncated_flac_is_not_taken_for_all(tmp_path):
    """Also when the part that was asked for starts behind the end."""
    path = cut_off(write(tmp_path / "cut.flac", noise(4)))
    with pytest.raises(AudioError, match="truncated or damaged"):
        load_audio(path, RATE, start=60000, num_samples=100)
    assert len(load_audio(path, RATE, start=0, num_samples=8000)) == 8000


@pytest.mark.parametrize(("start", "count"), [(-1, 5), (0, 0), (90, 11), (100, None), (0, 1000)])
def test_parts_beyond_the_file(tmp_path, start, count):
    path = write(tmp_path / "a.wav", noise(100 / RATE))
    with pytest.raises(AudioError, match=r"a\.wav: samples .* asked for, it has 100"):
        load_audio(path, RATE, start, count)


def test_wav_from_a_pipe_is_no_truncated_file(tmp_path):
    """Programs that cannot seek leave the data's size open."""
    path = write(tmp_path / "a.wav", noise(0.1))
    content = bytearray(path.read_bytes())
    place = content.index(b"data") + 4
    content[place : place + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert len(load_audio(path, RATE)) == 1600


@pytest.mark.parametrize("total", [0, 2**36 - 1], ids=["unknown", "absurd"])
@pytest.mark.parametrize("block", [1 << 22, 1000, 777])
@pytest.mark.parametrize("channels", [1, 2])
def test_flac_whose_header_does_not_know_its_length_is_read_to_its_end(
    tmp_path, monkeypatch, total, block, channels
):
    """An encoder that writes into a pipe leaves 0 samples in the header; the blocks may end with the file."""
    monkeypatch.setattr(audio, "BLOCK_SAMPLES", block)
    samples = np.stack([noise(0.5, n) for n in range(channels)], 1)
    path = set_flac_total(write(tmp_path / "a.flac", samples), total)
    expected = soundfile.read(write(tmp_path / "b.flac", samples), dtype="float32", always_2d=True)[0].mean(1)
    with AudioFile(path) as file:
        assert file.num_samples == 8000
        np.testing.assert_array_equal(file.read(), expected)
        for start, count in ((7000, 1000), (0, 10), (7999, 1), (100, 7900), (500, 20), (0, 8000)):
            np.testing.assert_array_equal(file.read(start, count), expected[start : start + count])
        with pytest.raises(AudioError, match=r"a\.flac: samples 7999 to 8001 were asked for, it has 8000"):
            file.read(7999, 2)


def test_an_absurd_length_takes_no_memory(tmp_path):
    """2^36 - 1 samples would be 256 GiB. The last one here is longer than it says, and big enough to be
    believed."""
    paths = [set_flac_total(write(tmp_path / f"{n}.flac", noise(0.5)), n) for n in (0, 2**36 - 1, 10**6)]
    tracemalloc.start()
    for path in paths[:2]:
        assert len(load_audio(path, RATE)) == 8000
    with pytest.raises(AudioError, match=r"1000000\.flac: truncated"):
        load_audio(paths[2], RATE)
    with pytest.raises(AudioError, match="truncated"):
        load_audio(paths[2], RATE, start=900_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


@pytest.mark.parametrize("rate", [0, 1, 999, 1_000_001, 2**31 - 1])
def test_rates_that_no_audio_has_are_refused_by_name(tmp_path, rate):
    """At 1 Hz resampling would take minutes and gigabytes."""
    path = set_wav_rate(write(tmp_path / "a.wav", noise(1)), rate)
    with pytest.raises(AudioError, match=rf"{path}: "):
        load_audio(path, RATE)


@pytest.mark.parametrize("rate", [999, 1_000_001])
def test_the_message_says_which_rates_there_are(tmp_path, rate):
    path = set_wav_rate(write(tmp_path / "a.wav", noise(1)), rate)
    with pytest.raises(AudioError, match=rf"a\.wav: a sample rate of {rate} Hz, expected 1000 to 1000000 Hz"):
        load_audio(path, RATE)


@pytest.mark.parametrize("rate", [1000, 1_000_000])
def test_the_lowest_and_the_highest_rate(tmp_path, rate):
    path = set_wav_rate(write(tmp_path / "a.wav", noise(1)), rate)
    assert len(load_audio(path, RATE)) == 16000 * RATE // rate


def test_a_file_is_closed_when_it_is_refused(tmp_path):
    path = set_wav_rate(write(tmp_path / "a.wav", noise(0.1)), 5)
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = []  # what refers to the frames that have opened it
    for _ in range(10):
        with pytest.raises(AudioError, match="5 Hz") as caught:
            AudioFile(path)
        kept.append(caught)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_encoded_audio_is_the_same_to_16_bits_and_by_the_byte(tmp_path):
    samples = np.concatenate([noise(0.1), np.float32([1.5, -1.5, 1, -1])])
    data = encode_audio(samples, RATE)
    assert data == encode_audio(samples, RATE)
    found = decode_audio(data, "x")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.clip(samples, -1, 1), atol=1 / 2**15)
    np.testing.assert_array_equal(decode_audio(encode_audio(found, RATE), "x"), found)
    with pytest.raises(AudioError, match="x: not readable as audio"):
        decode_audio(data[:20], "x")
    with pytest.raises(AudioError, match="x: not readable as audio"):
        decode_audio(b"", "x")
