"""Synthetic speech: espeak-ng, through its C interface (the extra `synth`; GPL-3, so it is optional)."""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brctc.config import did_you_mean
from brctc.data.manifest import WordTime
from brctc.extras import check_extra

SYNCHRONOUS = 2
"""Synthesis ends before espeak_Synth returns, and starts no thread."""
PHONEME_EVENTS, DO_NOT_EXIT = 0x0001, 0x8000
UTF8 = 1
CHARACTERS = 1
RATE, PITCH = 1, 3
LIST_END, WORD, PHONEME = 0, 1, 7
_ONE_AT_A_TIME = threading.Lock()


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    """espeak_EVENT of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Event(NamedTuple):
    """Where a word, or a phoneme, begins."""

    character: int
    """Of the text, from 0."""
    sample: int
    phoneme: str | None
    """None for a word."""


class Spoken(NamedTuple):
    """What is heard of a text."""

    samples: np.ndarray
    """(T) float32."""
    sample_rate: int
    word_times: tuple[WordTime, ...] | None
    """None if espeak has joined words, or has left one out."""


def check_voices(language: str, variants: Sequence[str]) -> None:
    """Refuses voices that are not there; espeak itself would speak with another one."""
    check_extra(("espeakng_loader",), "synth")
    import espeakng_loader

    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    known = sorted(path.name for path in folder.iterdir())
    for variant in variants:
        if variant not in known:
            raise ValueError(f"espeak has no voice {variant!r}{did_you_mean(variant, known)}")
    with _espeak() as (library, _):
        if library.espeak_SetVoiceByName(language.encode()) != 0:
            raise ValueError(f"espeak has no language {language!r}; some are en-us, en, de, es, fr")


def speak(text: str, language: str, variant: str, words_per_minute: int, pitch: int) -> Spoken:
    """The same text in the same voice is the same to the bit, whatever was spoken before."""
    chunks: list[bytes] = []
    events: list[Event] = []

    def receive(samples, count, found) -> int:  # noqa: ANN001
        if samples and count > 0:
            chunks.append(ctypes.string_at(samples, 2 * count))
        place = 0
        while found[place].type != LIST_END:
            event = found[place]
            if event.type in (WORD, PHONEME):
                phoneme = event.id.string.decode() if event.type == PHONEME else None
                events.append(Event(event.text_position - 1, event.sample, phoneme))
            place += 1
        return 0

    callback = _Callback(receive)
    content = text.encode() + b"\0"
    with _espeak() as (library, rate):
        library.espeak_SetSynthCallback(callback)
        status = library.espeak_SetVoiceByName(f"{language}+{variant}".encode())
        library.espeak_SetParameter(RATE, words_per_minute, 0)
        library.espeak_SetParameter(PITCH, pitch, 0)
        status = status or library.espeak_Synth(
            content, ctypes.c_size_t(len(content)), 0, CHARACTERS, 0, UTF8, None, None
        )
    if status != 0:
        raise ValueError(f"espeak failed with status {status}")
    samples = np.frombuffer(b"".join(chunks), np.int16).astype(np.float32) / 32768
    return Spoken(samples, rate, word_times(text, events, len(samples), rate))


@contextmanager
def _espeak() -> Iterator[tuple[ctypes.CDLL, int]]:
    """The library and its sample rate, loaded anew for every utterance: the phase of the voice, its flutter
    and other state outlive even espeak_Terminate, and would make an utterance depend on those before it. It
    costs about 2 ms, and leaves nothing behind that a forked process could share."""
    check_extra(("espeakng_loader",), "synth")
    import espeakng_loader

    c = ctypes.CDLL(None)
    c.dlclose.argtypes = [ctypes.c_void_p]
    with _ONE_AT_A_TIME:
        library = ctypes.CDLL(espeakng_loader.get_library_path())
        try:
            data = espeakng_loader.get_data_path().encode()
            rate = library.espeak_Initialize(SYNCHRONOUS, 0, data, PHONEME_EVENTS | DO_NOT_EXIT)
            if rate <= 0:
                raise OSError(f"espeak cannot begin with the data in {data.decode()}")
            library.espeak_ng_SetRandSeed(ctypes.c_long(1))
            c.srand(1)  # whispering voices take noise from the C library
            yield library, rate
            library.espeak_Terminate()
        finally:
            c.dlclose(library._handle)


def word_times(
    text: str, events: Sequence[Event], num_samples: int, rate: int
) -> tuple[WordTime, ...] | None:
    """When each word between spaces is spoken: from its first event to the first pause behind its sounds, or
    to the next word. None if one of them has no event of its own."""
    words = text.split()
    starts: list[int] = []
    end = 0
    for word in words:
        starts.append(text.index(word, end))
        end = starts[-1] + len(word)
    begins: list[int | None] = [None] * len(words)
    ends: list[int | None] = [None] * len(words)
    current, sounds = -1, False
    for event in events:
        if event.phoneme is None:
            before = current
            while current + 1 < len(words) and starts[current + 1] <= event.character:
                current += 1
            if current != before and begins[current] is None:
                begins[current], sounds = event.sample, False
        elif current >= 0:
            pause = event.phoneme.startswith("_")
            if pause and sounds and ends[current] is None:
                ends[current] = event.sample
            elif not pause:
                sounds, ends[current] = True, None  # a pause inside a word, as in "e-mail", does not end it
    found = []
    for i, word in enumerate(words):
        begin, after = begins[i], begins[i + 1] if i + 1 < len(words) else num_samples
        if begin is None or after is None:
            return None
        stop = ends[i]
        found.append(
            WordTime(word, round(begin / rate, 6), round((after if stop is None else stop) / rate, 6))
        )
    return tuple(found)
