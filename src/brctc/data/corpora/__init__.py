"""Corpora: one file each. A corpus registers itself; importing this package registers those built in."""

from brctc.data.corpora import digit_strings, grid, handwriting, librispeech, manifests, multi30k, spoken_text
from brctc.data.corpora.base import CORPORA, SPEEDS, AudioCorpusConfig, CorpusConfig

__all__ = [
    "AudioCorpusConfig",
    "CORPORA",
    "CorpusConfig",
    "SPEEDS",
    "digit_strings",
    "grid",
    "handwriting",
    "librispeech",
    "manifests",
    "multi30k",
    "spoken_text",
]
