"""The corpora built in: one file each, with a config and a `prepare`."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from brctc.config import Config
from brctc.data.corpora import digit_strings, grid, handwriting
from brctc.data.corpora.digit_strings import DigitStringsConfig
from brctc.data.corpora.grid import GridConfig
from brctc.data.corpora.handwriting import HandwritingConfig
from brctc.data.prepare import Progress
from brctc.data.prepared import Summary


class Corpus(NamedTuple):
    """A corpus that `prepare_corpus` knows."""

    config: type[Config]
    prepare: Callable[..., dict[str, Summary]]


CORPORA = {
    "handwriting": Corpus(HandwritingConfig, handwriting.prepare),
    "digit-strings": Corpus(DigitStringsConfig, digit_strings.prepare),
    "grid": Corpus(GridConfig, grid.prepare),
}


def prepare_corpus(
    name: str, out_dir: str | Path, *, progress: Progress | None = None, **options: Any
) -> dict[str, Summary]:
    """Writes the splits train, dev and test of a corpus; `options` are the fields of its config."""
    if name not in CORPORA:
        raise ValueError(f"there is no corpus {name!r}{_did_you_mean(name, CORPORA)}")
    corpus = CORPORA[name]
    for option in options:
        if option not in corpus.config.model_fields:
            raise ValueError(
                f"{name} has no option {option!r}{_did_you_mean(option, corpus.config.model_fields)}"
            )
    try:
        config = corpus.config(**options)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, detail['loc'])) or 'options'}: {detail['msg']}" for detail in error.errors()
        )
        raise ValueError(f"{name}: {wrong}") from None
    return corpus.prepare(out_dir, config, progress)


def _did_you_mean(name: str, known: dict[str, Any]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f": did you mean {nearest[0]!r}?" if nearest else ";"
    return f"{hint} There are: {', '.join(known)}"


__all__ = [
    "CORPORA",
    "Corpus",
    "DigitStringsConfig",
    "GridConfig",
    "HandwritingConfig",
    "prepare_corpus",
]
