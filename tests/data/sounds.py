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


def cut_off(path: Path, share: float = 0.5) -> Path:
    """Leaves the first part of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: round(share * len(content))])
    return path
