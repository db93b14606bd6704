"""Small audio files to test with, and real recordings where there are any."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

RATE = 16000
DATA = Path(__file__).parents[3] / "shared" / "data"


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"the real recordings {name} are not here")


def noise(seconds: float, seed: int = 0, rate: int = RATE) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(round(seconds * rate))).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate)
    return path


def write_digits(folder: Path, speakers: int = 5) -> Path:
    """Speakers as AudioMNIST lays them out: 48 kHz, levels far apart; each digit a tone of its own."""
    for speaker in range(1, speakers + 1):
        for digit in range(10):
            t = np.arange(48000 * (20 + digit + speaker) // 100) / 48000
            tone = 10 ** (-speaker / 2) * np.sin(2 * np.pi * 300 * (digit + 1) * t)
            write(folder / f"{speaker:02d}" / f"{digit}_{speaker:02d}_0.wav", tone, 48000)
    (folder / "audioMNIST_meta.txt").write_text("{}")
    return folder


def write_sentences(folder: Path, count: int = 20) -> Path:
    """Two seconds of noise each, under six words, with a manifest."""
    lines = ["id\ttext\tpath\tduration"]
    for n in range(count):
        write(folder / f"{n}.wav", noise(2.0, n))
        lines.append(f"s{n}\tbin blue at f {'two' if n % 2 else 'ten'} now\t{n}.wav\t2.0")
    (folder / "manifest.tsv").write_text("\n".join(lines) + "\n")
    return folder


def set_flac_total(path: Path, total: int) -> Path:
    """Another number of samples (36 bits) in the STREAMINFO of a FLAC file; 0 is what a pipe leaves."""
    content = bytearray(path.read_bytes())
    assert content[:4] == b"fLaC"
    packed = int.from_bytes(content[18:26], "big")  # rate, channels, bits and, last, the samples
    content[18:26] = (packed >> 36 << 36 | total).to_bytes(8, "big")
    path.write_bytes(content)
    return path


def set_wav_rate(path: Path, rate: int) -> Path:
    """Another sample rate in the header of a WAV file, whose samples stay."""
    content = bytearray(path.read_bytes())
    place = content.index(b"fmt ") + 12
    content[place : place + 4] = rate.to_bytes(4, "little")
    path.write_bytes(content)
    return path


def cut_off(path: Path, share: float = 0.5) -> Path:
    """Leaves the first part of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: round(share * len(content))])
    return path
