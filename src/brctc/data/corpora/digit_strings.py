"""Strings of spoken digits, each of one speaker, made from recordings of isolated digits.

The recordings are a manifest (one word per row, with its speaker) or AudioMNIST as it is published:
folders 01 to 60 with files such as 0_01_0.wav (digit, speaker, repetition).
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from brctc.config import Share
from brctc.data.audio import AudioError, AudioFile, resample
from brctc.data.corpora.base import CORPORA, AudioCorpusConfig, Size
from brctc.data.corpora.strings import SPLITS, StringItem, StringsConfig, StringsSource
from brctc.data.espeak import check_voices, speak
from brctc.data.manifest import PreparationError, Problem, Row, WordTime, read_manifest
from brctc.data.recordings import RowSource, read_by_file
from brctc.data.source import ExampleError, Loaded, Source

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SAMPLE_RATE = 16000
SPEECH_RMS = 0.05
"""Every clip is brought to this level: those of AudioMNIST differ a hundredfold."""
NOISE_RMS = 0.0005
"""Noise under the whole string, 40 dB below the speech, so that gaps are not digital silence."""
SOUNDS = 6
"""Steps of 5 ms that a sound must last: a click is none."""
_CLIP_NAME = re.compile(r"(\d)_\d+_\d+\.wav")

WORD_TIMES = "from sound to sound"
"""What is meant by a word's times; splits that were prepared with another meaning are prepared anew."""


class Clip(NamedTuple):
    """A recording of a word."""

    samples: np.ndarray
    sound: tuple[int, int]
    """The first sample of the word's sound, and the one behind its last."""


Level = Annotated[float, Field(ge=-60, le=30)]
Clips = dict[str, list[Clip]]
"""The recordings of each word, by one speaker."""


@CORPORA.register
class DigitStringsConfig(AudioCorpusConfig, StringsConfig):
    """Strings of spoken digits."""

    small_scale: ClassVar[bool] = True

    kind: Literal["digit-strings"] = "digit-strings"
    source: Path
    """A manifest, the folder of one (manifest.tsv), or AudioMNIST's folder."""
    dev_strings: Size = 200
    test_strings: Size = 1100
    max_digits: Size = 10
    max_gap_ms: Annotated[float, Field(ge=0)] = 300
    """Pauses before, between and after digits, at most."""
    dev_speakers: Size = 4
    test_speakers: Size = 12
    synthetic_share: Share = 0.0
    """Of the training strings, those that espeak-ng speaks in one go (the extra `synth`)."""
    voices: Annotated[tuple[str, ...], Field(min_length=1)] = ("m1", "m3", "m7", "f1", "f2", "f4")
    """Of espeak-ng."""
    levels_db: tuple[Level, Level] = (0.0, 0.0)
    """How much louder than usual a training string is, at least and at most: microphones differ."""

    def sources(self) -> Mapping[str, Source]:
        if self.synthetic_share:
            check_voices("en-us", self.voices)
        rows_of = find_recordings(self.source)
        speakers = split_speakers(sorted(rows_of), self)
        return {
            split: DigitStringsSource(self, split, {name: rows_of[name] for name in speakers[split]})
            for split in SPLITS
        }


class DigitStringsSource(StringsSource):
    """The strings of a split; no speaker is in two splits. Strings of one speaker follow one another, so
    that his or her recordings are read once."""

    def __init__(self, config: DigitStringsConfig, split: str, rows_of: Mapping[str, Sequence[Row]]) -> None:
        super().__init__(f"{config.source} ({split})", split, config.num_strings(split))
        self.config, self.rows_of = config, rows_of
        self._speaker = ""
        self._clips: Clips | ExampleError = {}

    def digest(self) -> str:
        rows = RowSource([row for rows in self.rows_of.values() for row in rows])
        made = self.config.model_dump_json(exclude={"prepared", "source", "speeds", "store"})
        content = f"{made} {WORD_TIMES} {self.split} {rows.digest()} {rows.fingerprint(list(rows.items()))}"  # pyright: ignore[reportArgumentType]
        return hashlib.sha256(content.encode()).hexdigest()

    def items(self) -> Iterator[StringItem]:
        names = list(self.rows_of)
        for place in range(len(names)):
            for index in range(place, self._size, len(names)):
                yield StringItem(f"{self.split}-{index:05d}", index)

    def load(self, item: StringItem) -> Loaded:
        config, names = self.config, list(self.rows_of)
        rng = config.string_rng(self.split, item.number)
        digits = config.draw_num_digits(self.split, rng)
        others = np.random.default_rng([config.seed, item.number, 1])  # strings do not depend on these draws
        synthetic = self.split == "train" and others.random() < config.synthetic_share
        if synthetic:
            speaker = str(others.choice(config.voices))
            samples, times = synthesise_string(speaker, digits, config.max_gap_ms, others)
        else:
            speaker = names[item.number % len(names)]
            samples, times = speak_string(self._clips_of(speaker), digits, config.max_gap_ms, rng)
        if self.split == "train":
            samples = samples * np.float32(10 ** (others.uniform(*config.levels_db) / 20))
        text = " ".join(time.word for time in times)
        return Loaded(item.id, {"transcript": text}, samples, SAMPLE_RATE, None, speaker, tuple(times))

    def _clips_of(self, speaker: str) -> Clips:
        """Read once; what is wrong with them is found once, too."""
        if speaker != self._speaker:
            self._speaker = speaker
            try:
                self._clips = load_clips(self.rows_of[speaker], SAMPLE_RATE)
            except ExampleError as error:
                self._clips = error
        if isinstance(self._clips, ExampleError):
            raise self._clips
        return self._clips

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_speaker": "", "_clips": {}}


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
            problems.append(f"{row.id}: {audio}")
            continue
        samples = resample(*audio, sample_rate)
        rms = float(np.sqrt(np.square(samples, dtype=np.float64).mean()))
        if rms == 0:
            problems.append(f"{row.id}: {row.path}: silence")
        else:
            levelled = samples * np.float32(SPEECH_RMS / rms)
            clips.setdefault(row.text, []).append(Clip(levelled, sound_edges(levelled, sample_rate)))
    if problems:
        raise ExampleError(*problems, id=f"speaker {rows[0].speaker}")
    return clips


def speak_string(
    clips: Clips, num_digits: int, max_gap_ms: float, rng: np.random.Generator
) -> tuple[np.ndarray, list[WordTime]]:
    """The samples of random digits, and when the sound of each begins and ends."""
    rate = SAMPLE_RATE
    words = rng.choice(sorted(clips), num_digits).tolist()
    chosen = [clips[word][rng.integers(len(clips[word]))] for word in words]
    gaps = rng.integers(0, round(max_gap_ms / 1000 * rate), size=num_digits + 1, endpoint=True).tolist()
    length = sum(len(clip.samples) for clip in chosen) + sum(gaps)
    samples = rng.standard_normal(length, dtype=np.float32) * np.float32(NOISE_RMS)
    times, end = [], 0
    for word, clip, gap in zip(words, chosen, gaps[:-1], strict=True):
        start = end + gap
        end = start + len(clip.samples)
        samples[start:end] += clip.samples
        times.append(WordTime(word, *(round((start + edge) / rate, 6) for edge in clip.sound)))
    return samples, times


def synthesise_string(
    voice: str, num_digits: int, max_gap_ms: float, rng: np.random.Generator
) -> tuple[np.ndarray, list[WordTime]]:
    """The same, spoken by espeak-ng in one go, with silence before and behind."""
    words = rng.choice(WORDS, num_digits).tolist()
    rate, pitch = int(rng.integers(110, 190)), int(rng.integers(35, 65))
    spoken = speak(" ".join(words), "en-us", voice, rate, pitch)
    heard = resample(spoken.samples, spoken.sample_rate, SAMPLE_RATE)
    gaps = rng.integers(0, round(max_gap_ms / 1000 * SAMPLE_RATE), size=2, endpoint=True).tolist()
    samples = rng.standard_normal(sum(gaps) + len(heard), dtype=np.float32) * np.float32(NOISE_RMS)
    rms = float(np.sqrt(np.square(heard, dtype=np.float64).mean()))
    samples[gaps[0] : gaps[0] + len(heard)] += heard * np.float32(SPEECH_RMS / rms)
    known = spoken.word_times
    if known is None or [time.word for time in known] != words:
        raise ExampleError(f"espeak has not said {' '.join(words)!r} word by word")
    first_s = gaps[0] / SAMPLE_RATE
    times = [WordTime(word, round(first_s + a, 6), round(first_s + b, 6)) for word, a, b in known]
    return samples, times


def sound_edges(samples: np.ndarray, sample_rate: int) -> tuple[int, int]:
    """Where the sound of a recorded word begins and ends: a clip of AudioMNIST has about 90 ms before it.

    Louder than the quietest tenth, for 30 ms without a break. Differences of samples are looked at: the
    recordings' rumble is louder than the f of five, but slow.
    """
    hop = sample_rate // 200
    changes = np.diff(samples.astype(np.float64), prepend=samples[:1])
    count = len(changes) // hop
    if count < SOUNDS:
        return 0, len(samples)
    energy = np.square(changes[: count * hop].reshape(count, hop)).mean(1)
    level = np.sqrt(np.convolve(np.pad(energy, 1, mode="edge"), [1 / 3] * 3, "valid"))
    enough = min(max(3 * np.percentile(level, 10), 0.02 * level.max()), 0.25 * level.max())
    loud = np.flatnonzero(np.convolve(level >= enough, [1] * SOUNDS, "valid") >= SOUNDS)
    if not len(loud):
        return 0, len(samples)
    last = loud[-1] + SOUNDS
    return int(loud[0]) * hop, len(samples) if last == count else int(last) * hop
