"""Synthetic speech: the same to the bit, in the voice that was asked for, and where its words are."""

import sys

import numpy as np
import pytest

from brctc.data.espeak import Event, check_voices, speak, word_times
from brctc.data.manifest import WordTime
from tests.data.children import CONTEXT

TEXT = "A man, in an orange hat, is staring."


WANTED = [
    (text, language, voice, rate, 50)
    for text, language in ((TEXT, "en-us"), ("Ein Mann schläft.", "de"))
    for voice in ("m3", "f5", "whisper", "klatt2")  # noise is drawn for the third
    for rate in (140, 190)
]


def test_the_same_whatever_was_spoken_before():
    first = {wanted: speak(*wanted) for wanted in WANTED}
    for order in (WANTED[::-1], WANTED[5:] + WANTED[:5]):
        for wanted in order:
            again = speak(*wanted)
            np.testing.assert_array_equal(again.samples, first[wanted].samples)
            assert again.word_times == first[wanted].word_times
    contents = {found.samples.tobytes() for found in first.values()}
    assert len(contents) == len(WANTED)  # voice and rate are heard


def test_the_same_in_another_process(tmp_path):
    expected = {str(i): speak(*wanted).samples for i, wanted in enumerate(WANTED)}
    process = CONTEXT.Process(target=_speak_all, args=(tmp_path / "found.npz",))
    process.start()
    process.join()
    assert process.exitcode == 0
    with np.load(tmp_path / "found.npz") as found:
        for name, samples in expected.items():
            np.testing.assert_array_equal(found[name], samples)


def _speak_all(path) -> None:
    speak("Something else before.", "en-us", "f1", 170, 40)
    np.savez(path, **{str(i): speak(*wanted).samples for i, wanted in enumerate(WANTED)})


def test_rate_and_pitch():
    slow, fast = (speak(TEXT, "en-us", "m3", rate, 50).samples for rate in (120, 240))
    assert 1.6 < len(slow) / len(fast) < 2.2

    def hertz(pitch: int) -> float:
        """Of the voice in a vowel: where its cepstrum has its peak, between 60 and 250 Hz."""
        vowel = speak("Ah.", "en-us", "m3", 120, pitch).samples[2000:6000]
        cepstrum = np.fft.irfft(np.log(np.abs(np.fft.rfft(vowel * np.hanning(4000))) + 1e-4))
        lags = np.arange(22050 // 250, 22050 // 60)
        return 22050 / lags[np.argmax(cepstrum[lags])]

    assert hertz(70) > 1.3 * hertz(30)


def test_words_sound_between_their_times():
    spoken = speak(TEXT, "en-us", "f2", 150, 50)
    assert spoken.sample_rate == 22050
    assert [time.word for time in spoken.word_times] == TEXT.split()
    level = np.abs(spoken.samples)
    covered = np.zeros(len(level), bool)
    end_before = 0.0
    for _, start_s, end_s in spoken.word_times:
        assert end_before <= start_s < end_s <= len(level) / 22050
        start, end = round(start_s * 22050), round(end_s * 22050)
        covered[start:end] = True
        assert level[start:end].max() > 0.05
        end_before = end_s
    man, after = spoken.word_times[1:3]
    assert after.start_s - man.end_s > 0.1  # the pause of the comma belongs to nobody
    assert (~covered).sum() > 0.2 * 22050
    assert level[~covered].mean() < 0.02 * level[covered].max()


def test_german_characters_are_counted_as_characters():
    text = "Zwei weiße Männer grüßen schöne Hunde."
    assert [time.word for time in speak(text, "de", "m1", 160, 50).word_times] == text.split()


def test_words_that_espeak_joins_have_no_times():
    assert speak("One of the men.", "en-us", "m1", 160, 50).word_times is None
    assert speak("Men -- please!", "en-us", "m1", 160, 50).word_times is None  # nobody says dashes


def test_times_of_words():
    events = [
        Event(0, 0, None),
        Event(0, 5, "a"),
        Event(2, 20, None),
        Event(2, 20, "_|"),  # before any sound: not its end
        Event(2, 25, "e"),
        Event(2, 30, "_"),
        Event(3, 40, None),  # a second part of the same word
        Event(3, 40, "m"),
        Event(3, 60, "_:"),
        Event(3, 80, "_"),
        Event(9, 100, None),
        Event(9, 100, "z"),
    ]
    assert word_times("a e-mail z", events, 200, 100) == (
        WordTime("a", 0.0, 0.2),
        WordTime("e-mail", 0.2, 0.6),
        WordTime("z", 1.0, 2.0),
    )
    assert word_times("a e-mail z", events[:-2], 200, 100) is None
    assert word_times("a e-mail z", events[2:], 200, 100) is None
    assert word_times("", [], 0, 100) == ()


def test_voices_that_are_not_there_are_refused():
    check_voices("de", ["m1", "f5"])
    with pytest.raises(ValueError, match=r"espeak has no voice 'f55': did you mean 'f5'\? There are: "):
        check_voices("de", ["m1", "f55"])
    with pytest.raises(ValueError, match="espeak has no language 'qq'; some are en-us, en, de, es, fr"):
        check_voices("qq", ["m1"])


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    for use in (lambda: check_voices("de", ["m1"]), lambda: speak("a", "de", "m1", 160, 50)):
        with pytest.raises(ImportError, match=r"needs espeakng_loader here: .*pip install '\.\[synth\]'"):
            use()
