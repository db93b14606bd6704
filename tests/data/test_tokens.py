"""Characters, words and BPE pieces, there and back."""

import json
import pickle
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from brctc.data import TokenConfig, Tokenizer

TEXTS = ["the cat sat on the mat", "a hat that sat", "the bat and the rat ate a tart", "él no está"] * 5
CONFIGS = [TokenConfig(), TokenConfig(kind="word"), TokenConfig(kind="bpe", size=40)]


@pytest.fixture(params=CONFIGS, ids=lambda config: config.kind)
def tokenizer(request) -> Tokenizer:
    return Tokenizer.train(TEXTS, request.param)


def test_there_and_back(tokenizer):
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert all(1 < index < tokenizer.size for index in ids)
        assert tokenizer.decode(ids) == text


def test_blank_and_unknown_have_their_places(tokenizer):
    assert tokenizer.pieces[:2] == ["<blank>", "<unk>"]
    assert tokenizer.size == len(tokenizer.pieces) == len(set(tokenizer.pieces))
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    ids = tokenizer.encode("cat")
    assert tokenizer.decode([0, *ids, 0]) == "cat"
    assert 1 in tokenizer.encode("cat 漢")
    assert "⁇" in tokenizer.decode(tokenizer.encode("cat 漢"))
    for wrong in (-1, tokenizer.size):
        with pytest.raises(ValueError, match=f"token {wrong} is not one of"):
            tokenizer.decode([wrong])


def test_saved_as_json(tokenizer):
    again = Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert again.pieces == tokenizer.pieces
    assert again.size == tokenizer.size
    for text in (*TEXTS, "unseen words"):
        assert again.encode(text) == tokenizer.encode(text)


def test_training_is_repeatable(tokenizer):
    config = next(config for config in CONFIGS if config.kind == tokenizer.kind)
    assert Tokenizer.train(TEXTS, config).to_dict() == tokenizer.to_dict()


def test_vocabularies():
    assert Tokenizer.train(["ba c", "ab"], TokenConfig()).pieces == ["<blank>", "<unk>", " ", "a", "b", "c"]
    words = Tokenizer.train(["two one", "one"], TokenConfig(kind="word"))
    assert words.pieces == ["<blank>", "<unk>", "one", "two"]
    assert words.encode("one three two") == [2, 1, 3]
    assert words.decode([2, 1, 3]) == "one ⁇ two"
    assert Tokenizer.train(TEXTS, CONFIGS[2]).size == 40


def test_long_texts_are_part_of_the_vocabulary():
    """sentencepiece would leave lines of more than 4192 bytes out."""
    long = "z" + "ab cd " * 1000
    assert 1 not in Tokenizer.train(["ab cd", long], TokenConfig(kind="bpe", size=12)).encode("z")


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=("Z", "C")), min_size=1))
def test_any_character_survives(text):
    tokenizer = Tokenizer.train([text], TokenConfig())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_impossible_configurations():
    with pytest.raises(ValidationError, match='kind "bpe" needs a size'):
        TokenConfig(kind="bpe")
    with pytest.raises(ValidationError, match='size belongs to kind "bpe"'):
        TokenConfig(kind="char", size=100)
    with pytest.raises(ValueError, match=r"20 texts do not make .* of 4000: .*Vocabulary size too high"):
        Tokenizer.train(TEXTS, TokenConfig(kind="bpe", size=4000))
    for config in CONFIGS:
        for texts in ([], ["", " "], iter([])):
            with pytest.raises(ValueError, match="there is no text to make a vocabulary of"):
                Tokenizer.train(texts, config)


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"kind": "char"},
        {"kind": "letters", "pieces": ["<blank>", "<unk>", "a"]},
        {"kind": "char", "pieces": ["a", "b"]},
        {"kind": "char", "pieces": ["<blank>", "<unk>", 3]},
        {"kind": "char", "pieces": ["<blank>", "<unk>", "a", "a"]},
        {"kind": "bpe", "model": "no base64!"},
        {"kind": "bpe", "model": "AAAA"},
    ],
)
def test_anything_else_is_refused(saved):
    with pytest.raises(ValueError, match="tokenizer"):
        Tokenizer.from_dict(saved)


def test_processes_get_the_same_tokenizer(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.to_dict() == tokenizer.to_dict()
    for text in (*TEXTS, "unseen words 漢"):
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(text)) == tokenizer.decode(tokenizer.encode(text))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_texts_are_read_once(config):
    """They may come from a corpus that does not fit into memory."""
    read = []

    def texts():
        for text in TEXTS:
            read.append(text)
            yield text

    assert Tokenizer.train(texts(), config).to_dict() == Tokenizer.train(TEXTS, config).to_dict()
    assert read == TEXTS


@pytest.mark.parametrize("kind", ["char", "word"])
def test_texts_are_not_kept(kind):
    tracemalloc.start()
    Tokenizer.train((f"{n % 100} " * 200 for n in range(5000)), TokenConfig(kind=kind))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000  # of 2.9 million characters


@pytest.mark.parametrize("first", [[], ["one text"]])
def test_an_error_of_the_texts_is_told(tokenizer, first):
    """And not that there are none."""
    config = next(config for config in CONFIGS if config.kind == tokenizer.kind)

    def texts():
        yield from first
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        Tokenizer.train(texts(), config)
