"""Corpora: one file each. A corpus registers itself; importing this package registers those built in."""

from brctc.data.corpora import (
    aishell1,
    aishell2,
    bass,
    digit_strings,
    grid,
    handwriting,
    iwslt14,
    librispeech,
    librispeech_mini,
    manifests,
    multi30k,
    must_c_v2,
    spoken_text,
    tatoeba,
    wenetspeech,
)
from brctc.data.corpora.base import CORPORA, SPEEDS, AudioCorpusConfig, CorpusConfig

__all__ = [
    "AudioCorpusConfig",
    "CORPORA",
    "CorpusConfig",
    "SPEEDS",
    "aishell1",
    "aishell2",
    "bass",
    "digit_strings",
    "grid",
    "handwriting",
    "iwslt14",
    "librispeech",
    "librispeech_mini",
    "manifests",
    "multi30k",
    "must_c_v2",
    "spoken_text",
    "tatoeba",
    "wenetspeech",
]
