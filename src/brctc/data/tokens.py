"""Text as numbers: characters, words or BPE pieces. Class 0 is the blank, class 1 the unknown."""

import base64
import binascii
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import sentencepiece
from pydantic import Field, model_validator

from brctc.config import Config

BLANK, UNKNOWN = "<blank>", "<unk>"
UNKNOWN_ID = 1
NO_TEXT = "there is no text to make a vocabulary of"
LONGEST_TEXT = 1 << 24  # bytes: longer ones would be dropped
UNKNOWN_TEXT = "⁇"
"""What an unknown token is in decoded text: one character, so that it counts as one error."""


class TokenConfig(Config):
    """What a token is. `size` counts all classes, blank and unknown among them; BPE alone takes it."""

    kind: Literal["char", "word", "bpe"] = "char"
    size: Annotated[int, Field(ge=3, le=1_000_000)] | None = None

    @model_validator(mode="after")
    def _size_of_bpe(self) -> "TokenConfig":
        if self.kind == "bpe" and self.size is None:
            raise ValueError('kind "bpe" needs a size, such as 500')
        if self.kind != "bpe" and self.size is not None:
            raise ValueError(f'size belongs to kind "bpe"; a "{self.kind}" vocabulary is what the text has')
        return self


class Tokenizer:
    """Turns text into classes and back; made by `train` or `from_dict`."""

    def __init__(self, kind: str, pieces: Sequence[str], model: bytes | None = None) -> None:
        self.kind = kind
        self.pieces = list(pieces)
        self._index = {piece: index for index, piece in enumerate(self.pieces)}
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model) if model else None

    @staticmethod
    def train(texts: Iterable[str], config: TokenConfig) -> "Tokenizer":
        """The vocabulary of the training texts; the same texts give the same one."""
        found = _Counted(texts)
        if config.size is not None:
            return _from_model(_train_bpe(found, config.size))
        units = {unit for text in found for unit in split_text(config.kind, text)}
        if not found.any_text:
            raise ValueError(NO_TEXT)
        return Tokenizer(config.kind, [BLANK, UNKNOWN, *sorted(units)])

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_dict, (self.to_dict(),)  # processes that prepare and load data have it too

    @property
    def size(self) -> int:
        """Number of classes, blank and unknown included."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """The classes of a text; what the vocabulary lacks is class 1."""
        if self._processor is not None:
            return self._processor.encode(text)
        return [self._index.get(unit, UNKNOWN_ID) for unit in split_text(self.kind, text)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of classes; blanks are left out."""
        ids = [int(index) for index in ids]
        for index in ids:
            if not 0 <= index < self.size:
                raise ValueError(f"token {index} is not one of the vocabulary's {self.size} classes")
        ids = [index for index in ids if index != 0]
        if self._processor is not None:
            return self._processor.decode(ids)
        units = [UNKNOWN_TEXT if index == 1 else self.pieces[index] for index in ids]
        return (" " if self.kind == "word" else "").join(units)

    def to_dict(self) -> dict[str, Any]:
        """The whole tokenizer as JSON takes it."""
        if self._model is not None:
            return {"kind": self.kind, "model": base64.b64encode(self._model).decode()}
        return {"kind": self.kind, "pieces": self.pieces}

    @staticmethod
    def from_dict(saved: dict[str, Any]) -> "Tokenizer":
        """What `to_dict` gave; anything else is refused."""
        match saved:
            case {"kind": "bpe", "model": str(model), **rest} if not rest:
                try:
                    return _from_model(base64.b64decode(model, validate=True))
                except (binascii.Error, RuntimeError) as error:
                    raise ValueError(f"the tokenizer's BPE model is damaged: {error}") from None
            case {"kind": "char" | "word" as kind, "pieces": [str(first), str(second), *others], **rest} if (
                not rest and (first, second) == (BLANK, UNKNOWN) and all(isinstance(p, str) for p in others)
            ):
                if len(set(others)) != len(others):
                    raise ValueError("the tokenizer has a piece twice")
                return Tokenizer(kind, [first, second, *others])
        raise ValueError(f"not a saved tokenizer: {str(saved)[:80]}")


def split_text(kind: str, text: str) -> list[str]:
    """The units of a text that need no vocabulary: its words or characters."""
    return text.split() if kind == "word" else list(text)


class _Counted:
    """Texts that are read once, and need not fit into memory."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)
        self.count, self.any_text = 0, False
        self.error: Exception | None = None
        """Why they could not be read."""

    def __iter__(self) -> Iterator[str]:
        try:
            for text in self._texts:
                self.count += 1
                self.any_text = self.any_text or bool(text.strip())
                yield text
        except Exception as error:
            self.error = error
            raise


def _train_bpe(texts: _Counted, size: int) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=LONGEST_TEXT,
            pad_id=0,
            pad_piece=BLANK,
            unk_id=UNKNOWN_ID,
            unk_piece=UNKNOWN,
            unk_surface=UNKNOWN_TEXT,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if texts.error is not None:  # sentencepiece wraps it up
            raise texts.error from None
        if not texts.any_text:
            raise ValueError(NO_TEXT) from None
        reason = str(error).strip().rpartition("] ")[2] or str(error)
        raise ValueError(f"{texts.count} texts do not make a BPE vocabulary of {size}: {reason}") from None
    return model.getvalue()


def _from_model(model: bytes) -> Tokenizer:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return Tokenizer("bpe", [processor.id_to_piece(i) for i in range(processor.get_piece_size())], model)
