"""Synthetic speech: a corpus of texts whose source side is spoken by espeak-ng.

It is for experiments where there is no recorded speech. Every utterance has a voice, a speed and a pitch of
its own, and voices of dev and test are never heard in training; it is clean and monotonous all the same.
"""

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from brctc.config import KeyedError
from brctc.data.corpora.base import CORPORA, AudioCorpusConfig, CorpusConfig, Size
from brctc.data.espeak import check_voices, speak
from brctc.data.manifest import Problem, WordTime
from brctc.data.source import ExampleError, Loaded, Source

SPEECH_RMS = 0.05
NOISE_RMS = 0.0005
"""Noise under the whole utterance, 40 dB below the speech, so that pauses are not digital silence."""
SILENCE_S = 0.1
"""Before and behind the speech."""


def _parse_texts(value: Any) -> Any:
    """The texts themselves are not prepared, so nobody needs to say where."""
    if isinstance(value, Mapping):
        value = {"prepared": "", **value}
    corpus = CORPORA.parse(value)
    if isinstance(corpus, CorpusConfig) and corpus.input != "text":
        raise KeyedError("kind", f"{corpus.kind} is not a corpus of texts: there is nothing to speak")
    return corpus


Voices = Annotated[tuple[str, ...], Field(min_length=1)]
WordsPerMinute = Annotated[int, Field(ge=80, le=450)]
Pitch = Annotated[int, Field(ge=0, le=99)]


@CORPORA.register
class SpokenTextConfig(AudioCorpusConfig):
    """Synthetic speech: the texts of another corpus, spoken by espeak-ng (the extra `synth`)."""

    title: ClassVar[str] = "synthetic speech (espeak-ng)"
    small_scale: ClassVar[bool] = True

    kind: Literal["spoken-text"] = "spoken-text"
    of: Annotated[SerializeAsAny[CorpusConfig], BeforeValidator(_parse_texts)]
    """The texts: a corpus of texts, such as text-pairs or multi30k, without its `prepared`."""
    language: str = "en-us"
    """What is spoken, as espeak calls it: en-us, en, de, es, fr, ..."""
    voices: Voices = ("m1", "m3", "m7", "f1", "f2", "f4")
    """Variants of espeak's voice that training hears."""
    held_out_voices: Voices = ("m2", "f5")
    """Those of all other splits, so that they are unseen."""
    words_per_minute: tuple[WordsPerMinute, WordsPerMinute] = (140, 190)
    """The slowest and the fastest."""
    pitch: tuple[Pitch, Pitch] = (35, 65)
    """The lowest and the highest; 50 is the voice's own."""
    take: dict[str, Size] = Field(default_factory=dict)
    """At most so many of a split, such as `{train: 5000}`; more of them include the fewer."""
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        both = sorted({*self.voices} & {*self.held_out_voices})
        if both:
            raise KeyedError("held_out_voices", f"training hears {', '.join(both)}, too")
        for key in ("words_per_minute", "pitch"):
            low, high = getattr(self, key)
            if low > high:
                raise KeyedError(key, f"the least, {low}, is above the most, {high}")
        return self

    def split_names(self) -> Sequence[str]:
        return self.of.split_names()

    def sources(self) -> Mapping[str, Source]:
        check_voices(self.language, (*self.voices, *self.held_out_voices))
        texts = self.of.sources()
        unknown = [split for split in self.take if split not in texts]
        if unknown:
            raise ValueError(f"take has {', '.join(unknown)}; the splits are {', '.join(texts)}")
        return {split: SpokenSource(self, split, source) for split, source in texts.items()}


class SpokenItem(NamedTuple):
    """A text and how it is to be spoken."""

    id: str
    text: Any
    """The item of the corpus of texts."""
    voice: str
    words_per_minute: int
    pitch: int
    noise: int
    """The seed of its noise."""


class SpokenSource:
    """The texts of a split, spoken one at a time in whatever process prepares them."""

    def __init__(self, config: SpokenTextConfig, split: str, texts: Source) -> None:
        self.name = f"{texts.name}, spoken"
        self.config, self.split, self.texts = config, split, texts

    def digest(self) -> str:
        """With the version of espeak, which decides how it sounds."""
        made = self.config.model_dump_json(exclude={"prepared", "of", "speeds", "store", "take"})
        content = [made, self.split, self.config.take.get(self.split), self.texts.digest()]
        return hashlib.sha256(f"{content} {version('espeakng-loader')}".encode()).hexdigest()

    def size(self) -> int:
        there = self.texts.size()
        return min(there, self.config.take.get(self.split, there))

    def items(self) -> Iterator[SpokenItem | Problem]:
        most = self.config.take.get(self.split)
        last = None if most is None else self._last_key(most)
        for item in self.texts.items():
            if last is not None and self._key(item.id) > last:
                continue
            yield item if isinstance(item, Problem) else self._spoken(item)

    def fingerprint(self, items: Sequence[SpokenItem]) -> str:
        return self.texts.fingerprint([item.text for item in items])

    def load(self, item: SpokenItem) -> Loaded:
        texts = self.texts.load(item.text).texts
        heard = speak(texts["source"], self.config.language, item.voice, item.words_per_minute, item.pitch)
        if not heard.samples.any():
            raise ExampleError(f"espeak says nothing for {texts['source']!r}")
        samples = _in_noise(heard.samples, heard.sample_rate, item.noise)
        times = heard.word_times and tuple(
            WordTime(word, round(start + SILENCE_S, 6), round(end + SILENCE_S, 6))
            for word, start, end in heard.word_times
        )
        named = {"transcript": texts["source"], "translation": texts["translation"]}
        return Loaded(item.id, named, samples, heard.sample_rate, None, item.voice, times)

    def _spoken(self, item: Any) -> SpokenItem:
        """Decided by the seed and the id alone."""
        config = self.config
        rng = np.random.default_rng([*self._key(item.id)])
        voices = config.voices if self.split == "train" else config.held_out_voices
        voice = voices[rng.integers(len(voices))]
        speed = int(rng.integers(*config.words_per_minute, endpoint=True))
        pitch = int(rng.integers(*config.pitch, endpoint=True))
        return SpokenItem(item.id, item, voice, speed, pitch, int(rng.integers(2**32)))

    def _key(self, id: str) -> bytes:
        return hashlib.sha256(f"{self.config.seed} {id}".encode()).digest()[:16]

    def _last_key(self, most: int) -> bytes:
        """Those up to it are taken: at random, wherever they stand in the files."""
        keys = (self._key(item.id) for item in self.texts.items())
        return max(heapq.nsmallest(most, keys), default=b"")


def _in_noise(speech: np.ndarray, rate: int, seed: int) -> np.ndarray:
    """At the usual level, with faint noise under and around it."""
    around = round(SILENCE_S * rate)
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal(len(speech) + 2 * around, dtype=np.float32) * np.float32(NOISE_RMS)
    rms = np.sqrt(np.square(speech, dtype=np.float64).mean())
    samples[around : around + len(speech)] += speech * np.float32(SPEECH_RMS / rms)
    return samples
