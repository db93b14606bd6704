"""Audio files as float32 samples, mono, at the rate that is wanted; bad files are named."""

import contextlib
import functools
import io
import logging
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import soundfile

_log = logging.getLogger("brctc.data")
_UNKNOWN_FROM = 0x7FFF0000  # a program that writes WAV into a pipe leaves 0, or about the most, in the header


LOUDEST = 100.0  # louder samples are no overshoot, but 16-bit ones that were never scaled
LOWEST_RATE, HIGHEST_RATE = 1_000, 1_000_000
BLOCK_SAMPLES = 1 << 22
MOST_SAMPLES_PER_BYTE = 10_000  # no codec makes silence shorter


class AudioError(ValueError):
    """An audio file that cannot be used; the message starts with its path."""


def sample_problem(samples: np.ndarray, first: int = 0, of: str = "") -> str | None:
    """The first sample that cannot be one, counted from `first`, and of what."""
    wrong = ~(np.abs(samples) <= LOUDEST)  # NaN is no more than anything
    if not wrong.any():
        return None
    place = int(np.argmax(wrong))
    value = samples[place]
    hint = ": are these 16-bit samples? Divide by 32768" if np.isfinite(value) else ""
    return f"sample {first + place}{of} is {value:g}, expected -1 to 1{hint}"


class AudioFile:
    """An open audio file whose parts are read one after the other."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            if not self.path.is_file():
                raise AudioError(f"{path}: {'is a directory' if self.path.is_dir() else 'no such file'}")
            if self.path.stat().st_size == 0:
                raise AudioError(f"{path}: the file is empty")
            _check_wav_size(self.path)
            self._file = soundfile.SoundFile(self.path)
            self._open_ended = self._file.frames > MOST_SAMPLES_PER_BYTE * self.path.stat().st_size
        except TypeError:  # soundfile's way to say it
            raise AudioError(f"{path}: audio without a header: its rate is not known") from None
        except OSError as error:
            raise AudioError(f"{path}: {error.strerror or error}") from None
        except soundfile.LibsndfileError as error:
            raise AudioError(f"{path}: not readable as audio ({error.error_string})") from None
        self.sample_rate: int = self._file.samplerate
        try:
            self._check_rate()
            self.num_samples = self._count_samples()
        except AudioError:
            self._file.close()
            raise

    def __enter__(self) -> "AudioFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read(self, start: int = 0, num_samples: int | None = None) -> np.ndarray:
        """A part of the file at its own rate; channels are averaged."""
        wanted = self.num_samples - start if num_samples is None else num_samples
        if start < 0 or wanted <= 0 or start + wanted > self.num_samples:
            raise AudioError(
                f"{self.path}: samples {start} to {start + wanted} were asked for, it has {self.num_samples}"
            )
        try:
            if self._open_ended:
                self._reopen()
            if self._file.tell() != start:
                self._file.seek(start)
            blocks = list(self._blocks(wanted))
        except soundfile.LibsndfileError as error:
            raise AudioError(f"{self.path}: truncated or damaged ({error.error_string})") from None
        mono = blocks[0] if len(blocks) == 1 else np.concatenate(blocks or [np.zeros(0, np.float32)])
        if len(mono) != wanted:
            raise AudioError(f"{self.path}: truncated: {len(mono)} of {wanted} samples could be read")
        if problem := sample_problem(mono, start):
            raise AudioError(f"{self.path}: {problem}")
        return mono

    def _check_rate(self) -> None:
        if not LOWEST_RATE <= self.sample_rate <= HIGHEST_RATE:
            expected = f"expected {LOWEST_RATE} to {HIGHEST_RATE} Hz"
            raise AudioError(f"{self.path}: a sample rate of {self.sample_rate} Hz, {expected}")

    def _count_samples(self) -> int:
        """What the header says, if that can be true. What a piped encoder leaves there cannot: then it is
        counted."""
        said = self._file.frames
        if not self._open_ended and said > 0:
            return said
        counted = sum(len(block) for block in self._blocks(said))
        if counted == 0:
            raise AudioError(f"{self.path}: the audio has no samples")
        return counted

    def _reopen(self) -> None:
        """libsndfile cannot seek any more once it was at an end that it did not know."""
        self._file.close()
        self._file = soundfile.SoundFile(self.path)

    def _blocks(self, wanted: int) -> Iterator[np.ndarray]:
        """Mono samples, block by block: memory is taken for what is there, not for what a header says."""
        while wanted > 0:
            block = self._read_block(min(wanted, BLOCK_SAMPLES))
            if len(block) == 0:
                return
            wanted -= len(block)
            yield block[:, 0] if block.shape[1] == 1 else block.mean(1)

    def _read_block(self, size: int) -> np.ndarray:
        if not self._open_ended:
            return self._file.read(size, dtype="float32", always_2d=True)
        block = np.full((size, self._file.channels), np.nan, np.float32)
        with contextlib.suppress(soundfile.LibsndfileError):  # soundfile seeks to where it is, at the end
            self._file.read(out=block)
        unread = np.isnan(block[:, 0])
        return block[: int(np.argmax(unread))] if unread.any() else block


def load_audio(
    path: str | Path, sample_rate: int, start: int = 0, num_samples: int | None = None
) -> np.ndarray:
    """Mono samples in [-1, 1] at `sample_rate`; the part is given in the file's own samples.

    Another rate is resampled, with a notice in the log "brctc.data" once per rate.
    """
    with AudioFile(path) as file:
        return resample(file.read(start, num_samples), file.sample_rate, sample_rate)


def decode_audio(data: bytes, name: str) -> np.ndarray:
    """Mono samples of an encoded file in memory, whose header knows its length."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if not 0 < file.frames <= MOST_SAMPLES_PER_BYTE * len(data):  # before memory is taken for them
                raise AudioError(f"{name}: {len(data)} bytes cannot be {file.frames} samples")
            return file.read(dtype="float32")
    except (soundfile.LibsndfileError, TypeError) as error:
        raise AudioError(f"{name}: not readable as audio ({error})") from None


def resample(samples: np.ndarray, given: int, wanted: int) -> np.ndarray:
    """Samples at another rate, with a notice once per rate."""
    if given == wanted:
        return samples
    _notice(given, wanted)
    return _resample(samples, given, wanted)


def change_speed(samples: np.ndarray, speed: float) -> np.ndarray:
    """Plays faster (above 1) or slower, pitch included, as Kaldi's speed perturbation does."""
    percent = round(speed * 100)
    return samples if percent == 100 else _resample(samples, percent, 100)


def length_at_speed(num_samples: int, speed: float) -> int:
    """How many samples `change_speed` gives."""
    return -(-num_samples * 100 // round(speed * 100))


def _resample(samples: np.ndarray, given: int, wanted: int) -> np.ndarray:
    from scipy.signal import resample_poly  # its import takes longer than most files do

    common = math.gcd(given, wanted)
    return resample_poly(samples, wanted // common, given // common).astype(np.float32)


@functools.cache
def _notice(given: int, wanted: int) -> None:
    _log.warning("audio at %d Hz is resampled to %d Hz", given, wanted)


def _check_wav_size(path: Path) -> None:
    """A WAV file that ends before its header says: libsndfile would read what is left of it."""
    with path.open("rb") as file:
        riff, _, wave = struct.unpack("<4sI4s", file.read(12).ljust(12, b"\0"))
        if (riff, wave) != (b"RIFF", b"WAVE"):
            return
        promised = _data_size(file)
        left = path.stat().st_size - file.tell()
    if promised is not None and left < promised < _UNKNOWN_FROM:
        raise AudioError(f"{path}: truncated: {left} of {promised} bytes of samples are there")


def _data_size(file: BinaryIO) -> int | None:
    """The size of the data chunk; the file is then at its start. None if there is none."""
    while len(head := file.read(8)) == 8:
        name, size = struct.unpack("<4sI", head)
        if name == b"data":
            return size
        file.seek(size + size % 2, 1)
    return None
