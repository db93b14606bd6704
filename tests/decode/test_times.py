"""Frames to seconds, tokens to words."""

import random

import pytest

from brctc.data import TokenConfig, Tokenizer, WordTime
from brctc.decode.times import token_times, word_times

TEXTS = ["bin blue at f two now", "set white in a nine soon", "lay green by b one please"]


def test_frames_as_seconds():
    found = token_times(["a", "b", "c"], [0, 4, 9], [0, 5, 9], first_s=0.015, frame_s=0.04, duration_s=0.4)
    assert [t.word for t in found] == ["a", "b", "c"]
    assert [(t.start_s, t.end_s) for t in found] == [
        pytest.approx((0.015, 0.055)),
        pytest.approx((0.175, 0.255)),  # a run of two
        pytest.approx((0.375, 0.4)),  # not behind the end of the audio
    ]


def test_tokens_of_one_frame_share_it():
    found = token_times(["a", "b", "c"], [3, 3, 5], [3, 3, 5], first_s=0.0, frame_s=0.04, duration_s=1.0)
    times = [time for t in found for time in t[1:]]
    assert times == pytest.approx([0.12, 0.14, 0.14, 0.16, 0.2, 0.24])


def made_up_times(count):
    return tuple(WordTime("", float(k), k + 0.5) for k in range(count))


def test_words_of_characters():
    tokenizer = Tokenizer.train(TEXTS, TokenConfig(kind="char"))
    tokens = tokenizer.encode("at  two ")
    found = word_times(tokens, made_up_times(len(tokens)), tokenizer, "char")
    assert found == (("at", 0.0, 1.5), ("two", 4.0, 6.5))


def test_characters_of_chinese_have_times_of_their_own():
    tokenizer = Tokenizer.train(["想听歌曲let it go"], TokenConfig(kind="char"))
    tokens = tokenizer.encode("想听let it")  # 想 听 l e t _ i t
    times = made_up_times(len(tokens))
    found = word_times(tokens, times, tokenizer, "char")
    assert found == (("想", 0.0, 0.5), ("听", 1.0, 1.5), ("let", 2.0, 4.5), ("it", 6.0, 7.5))
    assert word_times(tokens, times, tokenizer, "word") == (("想听let", 0.0, 4.5), ("it", 6.0, 7.5))
    unknown = tokenizer.encode("想好听")
    assert [t.word for t in word_times(unknown, made_up_times(3), tokenizer, "char")] == ["想", "⁇", "听"]


@pytest.mark.parametrize("config", [TokenConfig(kind="word"), TokenConfig(kind="bpe", size=8)])
def test_characters_of_one_token_are_predicted_with_it(config):
    tokenizer = Tokenizer.train(["设定 设定 设定"], config)
    tokens = tokenizer.encode("设定")
    assert len(tokens) == 1
    found = word_times(tokens, [WordTime("", 1.0, 1.04)], tokenizer, "char")
    assert found == (("设", 1.0, 1.04), ("定", 1.0, 1.04))


@pytest.mark.parametrize(
    "config", [TokenConfig(), TokenConfig(kind="word"), TokenConfig(kind="bpe", size=40)]
)
def test_any_tokens_make_the_words_of_their_text(config):
    """Whatever a search puts out: words are those of the text, in order, and do not overlap."""
    tokenizer = Tokenizer.train(TEXTS, config)
    generator = random.Random(0)
    for _ in range(300):
        tokens = generator.choices(range(1, tokenizer.size), k=generator.randint(0, 12))
        for unit in ("word", "char"):  # the same for a text of words
            found = word_times(tokens, made_up_times(len(tokens)), tokenizer, unit)
            assert [t.word for t in found] == tokenizer.decode(tokens).split()
            edges = [time for t in found for time in t[1:]]
            assert edges == sorted(edges)
