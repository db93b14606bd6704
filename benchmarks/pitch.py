"""Gross pitch errors of our features against Praat and WORLD, on the recordings of a manifest.

pip install praat-parselmouth pyworld
python benchmarks/pitch.py MANIFEST [--limit 100] [--look-ahead 10]

An error is gross above 20%. Frames count that the other method calls voiced; the last row has those where
both others agree within 5%, which are the best reference that there is without a laryngograph.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from brctc.data import FeatureConfig
from brctc.data.features import num_frames
from brctc.data.manifest import read_manifest
from brctc.data.pitch import HIGHEST_HZ, LOWEST_HZ, PitchTracker
from brctc.data.recordings import read_by_file

SHIFT_S = 0.01
GROSS, AGREE = 0.2, 0.05
FLOOR_HZ = 75
"""Praat's default."""


def ours(samples: np.ndarray, rate: int, look_ahead: int | None) -> np.ndarray:
    """(T) Hz: unvoiced frames have a pitch, too."""
    tracker = PitchTracker(rate, 1000 * SHIFT_S, look_ahead)
    frames = num_frames(len(samples), FeatureConfig(sample_rate=rate))
    tracks = tracker.push(samples), tracker.finish(frames)
    return np.exp(np.concatenate([log_pitch for _, log_pitch in tracks]))


def praat(samples: np.ndarray, rate: int, middles: np.ndarray) -> np.ndarray:
    """(T) Hz at these times; NaN where it finds no voice."""
    import parselmouth  # pyright: ignore[reportMissingImports]

    sound = parselmouth.Sound(samples.astype(np.float64), rate)
    pitch = sound.to_pitch(time_step=SHIFT_S, pitch_floor=FLOOR_HZ, pitch_ceiling=HIGHEST_HZ)
    return np.array([pitch.get_value_at_time(float(middle)) for middle in middles])


def world(samples: np.ndarray, rate: int, middles: np.ndarray) -> np.ndarray:
    """As `praat`."""
    import pyworld  # pyright: ignore[reportMissingImports]

    options = {"f0_floor": FLOOR_HZ, "f0_ceil": HIGHEST_HZ, "frame_period": 1000 * SHIFT_S}
    found, times = pyworld.harvest(samples.astype(np.float64), rate, **options)
    nearest = np.abs(times[None] - middles[:, None]).argmin(1)
    return np.where(found[nearest] > 0, found[nearest], np.nan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--limit", type=int, default=100, help="recordings, spread over the manifest")
    parser.add_argument("--look-ahead", type=int)
    given = parser.parse_args()
    counts = {name: np.zeros(2, int) for name in ("Praat", "WORLD", "both agree")}
    seconds = spent = 0.0
    rows = read_manifest(given.manifest)
    rows = rows[:: max(1, len(rows) // given.limit)][: given.limit]
    for _, audio in read_by_file(rows):
        if isinstance(audio, Exception):
            raise audio
        samples, rate = audio
        start = time.process_time()
        found = ours(samples, rate, given.look_ahead)
        spent += time.process_time() - start
        seconds += len(samples) / rate
        middles = (np.arange(len(found)) + 0.5) * SHIFT_S
        others = {"Praat": praat(samples, rate, middles), "WORLD": world(samples, rate, middles)}
        agree = np.abs(others["WORLD"] / others["Praat"] - 1) < AGREE
        others["both agree"] = np.where(agree, others["Praat"], np.nan)
        for name, reference in others.items():
            voiced = ~np.isnan(reference)
            gross = np.abs(found[voiced] / reference[voiced] - 1) > GROSS
            counts[name] += [gross.sum(), len(gross)]
    print(f"{len(rows)} recordings, {seconds:.0f} s; {LOWEST_HZ:.0f} to {HIGHEST_HZ:.0f} Hz")
    for name, (gross, total) in counts.items():
        print(f"{name:12} voiced frames {total:7}   gross pitch errors {gross / total:.2%}")
    print(f"{seconds / spent:.0f} times real time on one core")


if __name__ == "__main__":
    main()
