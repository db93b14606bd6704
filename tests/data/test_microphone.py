"""Blocks of a sound card that is not there."""

import sys
from itertools import islice

import numpy as np
import pytest

from brctc.data import record


class Card:
    """What `sounddevice` is to `record`: blocks whose samples all are their number; before some, others were
    lost."""

    __spec__ = "found"
    PortAudioError = OSError

    def __init__(self, lost_before):
        self.lost_before, self.reads = lost_before, 0

    def InputStream(self, sample_rate, block, channels, dtype):  # noqa: N802 (sounddevice's name)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def read(self, block):
        self.reads += 1
        return np.full((block, 1), self.reads / 1000, np.float32), self.reads in self.lost_before


def test_lost_audio_is_told_before_what_follows(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", Card(lost_before=(3, 5)))
    found = []
    for block in islice(record(16000, lambda: found.append("lost")), 5):
        assert block.shape == (160,)
        found.append(round(1000 * block[0]))
    assert found == [1, 2, "lost", 3, 4, "lost", 5]


def test_a_rate_that_no_microphone_has(monkeypatch):
    card = Card(())
    monkeypatch.setitem(sys.modules, "sounddevice", card)
    monkeypatch.setattr(card, "InputStream", lambda *_, **__: int("no"), raising=True)
    with pytest.raises(OSError, match="there is no microphone that records 12345 Hz"):
        next(record(12345, lambda: None))
