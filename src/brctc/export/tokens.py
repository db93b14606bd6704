"""The vocabulary as a text file: a piece and its number in each line, as sherpa-onnx and others read it."""

from brctc.data import Tokenizer
from brctc.data.tokens import UNKNOWN_ID, UNKNOWN_TEXT

BLANK, WORD = "<blk>", "▁"  # ▁ stands before a word: a text is the pieces in a line, with spaces for these


def shown_pieces(tokenizer: Tokenizer) -> list[str]:
    """What such a file has for each class."""
    pieces = [BLANK, *tokenizer.pieces[1:]]
    pieces[UNKNOWN_ID] = UNKNOWN_TEXT
    if tokenizer.kind == "word":
        pieces[1:] = [WORD + piece for piece in pieces[1:]]
    return [WORD if piece == " " else piece for piece in pieces]


def check_pieces(tokenizer: Tokenizer) -> None:
    """Refuses a vocabulary that the file cannot hold."""
    for number, piece in enumerate(shown_pieces(tokenizer)):
        if len(piece.split()) != 1:
            raise ValueError(f"piece {number} of the vocabulary is {piece!r}: tokens.txt has no white space")


def tokens_text(tokenizer: Tokenizer) -> str:
    """What such a file holds."""
    lines = [f"{piece} {number}\n" for number, piece in enumerate(shown_pieces(tokenizer))]
    return "".join(lines)
