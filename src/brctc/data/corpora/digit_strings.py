"""Strings of spoken digits, each of one speaker, made from recordings of isolated digits.

The recordings are a manifest (one word per row, with its speaker) or AudioMNIST as it is published:
folders 01 to 60 with files such as 0_01_0.wav (digit, speaker, repetition).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from brctc.data.audio import AudioError, AudioFile, change_speed, resample
from brctc.data.augment import SPEEDS, Speed
from brctc.data.corpora.strings import SPLITS, Size, StringsConfig
from brctc.data.features import FeatureConfig, fbank
from brctc.data.manifest import PreparationError, Problem, Row, WordTime, read_manifest
from brctc.data.prepare import Progress, at_speed, read_by_file
from brctc.data.prepared import PreparedWriter, Summary

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEECH_RMS = 0.05
"""Every clip is brought to this level: those of AudioMNIST differ a hundredfold."""
NOISE_RMS = 0.0005
"""Noise under the whole string, 40 dB below the speech, so that gaps are not digital silence."""
_CLIP_NAME = re.compile(r"(\d)_\d+_\d+\.wav")

Clips = dict[str, list[np.ndarray]]
"""The recordings of each word, by one speaker."""


class DigitStringsConfig(StringsConfig):
    """Where the digits are and how many strings are made of them."""

    source: Path
    """A manifest, the folder of one (manifest.tsv), or AudioMNIST's folder."""
    dev_strings: Size = 200
    test_strings: Size = 1100
    max_digits: Size = 10
    max_gap_ms: Annotated[float, Field(ge=0)] = 300
    """Pauses before, between and after digits, at most."""
    dev_speakers: Size = 4
    test_speakers: Size = 12
    speeds: tuple[Speed, ...] = SPEEDS
    """Speeds at which each training string is stored."""
    features: FeatureConfig = FeatureConfig()


def prepare(
    out_dir: str | Path, config: DigitStringsConfig, progress: Progress | None = None
) -> dict[str, Summary]:
    """Writes the splits train, dev and test; no speaker is in two of them."""
    rows_of = find_recordings(config.source)
    speakers = split_speakers(sorted(rows_of), config)
    done = 0
    summaries = {}
    for split in SPLITS:
        count, here = config.num_strings(split), speakers[split]
        with PreparedWriter(
            out_dir,
            split,
            feature_dim=config.features.num_bins,
            frame_shift_s=config.features.frame_shift_s,
            feature_config=config.features,
        ) as writer:
            for place, speaker in enumerate(here[:count]):
                clips = load_clips(rows_of[speaker], config.features.sample_rate)
                for index in range(place, count, len(here)):
                    rng = config.string_rng(split, index)
                    samples, times = speak_string(clips, config.draw_num_digits(split, rng), config, rng)
                    text = " ".join(time.word for time in times)
                    for speed in config.speeds if split == "train" else (1.0,):
                        id, word_times = at_speed(f"{split}-{index:05d}", times, speed)
                        features = fbank(change_speed(samples, speed), config.features)
                        writer.add(id, text, features, speaker, word_times)
                    done += 1
                    if progress is not None:
                        progress(done, config.total_strings)
        summaries[split] = writer.summary()
    return summaries


def find_recordings(source: Path) -> dict[str, list[Row]]:
    """The rows of each speaker."""
    if source.is_file():
        rows = read_manifest(source)
    elif (source / "manifest.tsv").is_file():
        rows = read_manifest(source / "manifest.tsv")
    else:
        rows = _audiomnist_rows(source)
    problems = [Problem(row.id, "the speaker is empty") for row in rows if row.speaker is None]
    problems += [
        Problem(row.id, f"the text is {row.text!r}, expected one word")
        for row in rows
        if len(row.text.split()) != 1
    ]
    if problems:
        raise PreparationError(str(source), problems)
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        rows_of.setdefault(str(row.speaker), []).append(row)
    return rows_of


def _audiomnist_rows(source: Path) -> list[Row]:
    rows = []
    for path in sorted([*source.glob("[0-9][0-9]/*.wav"), *source.glob("data/[0-9][0-9]/*.wav")]):
        if match := _CLIP_NAME.fullmatch(path.name):
            with AudioFile(path) as file:
                duration = file.num_samples / file.sample_rate
            rows.append(Row(path.stem, WORDS[int(match[1])], path, duration, path.parent.name))
    if not rows:
        raise ValueError(f"{source} holds neither manifest.tsv nor AudioMNIST's files such as 01/0_01_0.wav")
    return rows


def split_speakers(speakers: Sequence[str], config: DigitStringsConfig) -> dict[str, list[str]]:
    """Who speaks in which split."""
    held_out = config.dev_speakers + config.test_speakers
    if len(speakers) <= held_out:
        raise ValueError(
            f"{config.source} has {len(speakers)} speakers; dev_speakers {config.dev_speakers} and "
            f"test_speakers {config.test_speakers} leave none to train on"
        )
    order: list[int] = np.random.default_rng(config.seed).permutation(len(speakers)).tolist()
    parts = {
        "train": order[held_out:],
        "dev": order[: config.dev_speakers],
        "test": order[config.dev_speakers : held_out],
    }
    return {split: [speakers[i] for i in sorted(part)] for split, part in parts.items()}


def load_clips(rows: Sequence[Row], sample_rate: int) -> Clips:
    """A speaker's recordings, all at the same level."""
    clips: Clips = {}
    problems = []
    for row, audio in read_by_file(rows):
        if isinstance(audio, AudioError):
            problems.append(Problem(row.id, str(audio)))
            continue
        samples = resample(*audio, sample_rate)
        rms = float(np.sqrt(np.square(samples, dtype=np.float64).mean()))
        if rms == 0:
            problems.append(Problem(row.id, f"{row.path}: silence"))
        else:
            clips.setdefault(row.text, []).append(samples * np.float32(SPEECH_RMS / rms))
    if problems:
        raise PreparationError(f"speaker {rows[0].speaker}", problems)
    return clips


def speak_string(
    clips: Clips, num_digits: int, config: DigitStringsConfig, rng: np.random.Generator
) -> tuple[np.ndarray, list[WordTime]]:
    """The samples of random digits, and where each clip begins and ends."""
    rate = config.features.sample_rate
    words = rng.choice(sorted(clips), num_digits).tolist()
    chosen = [clips[word][rng.integers(len(clips[word]))] for word in words]
    gaps = rng.integers(
        0, round(config.max_gap_ms / 1000 * rate), size=num_digits + 1, endpoint=True
    ).tolist()
    length = sum(map(len, chosen)) + sum(gaps)
    samples = rng.standard_normal(length, dtype=np.float32) * np.float32(NOISE_RMS)
    times, end = [], 0
    for word, clip, gap in zip(words, chosen, gaps[:-1], strict=True):
        start = end + gap
        end = start + len(clip)
        samples[start:end] += clip
        times.append(WordTime(word, round(start / rate, 6), round(end / rate, 6)))
    return samples, times
