"""The searches by name, and the one place that chooses between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from brctc.decode.ctc import check_counts
from brctc.models.system import SystemConfig

Method = Literal["auto", "ctc", "ctc-greedy", "ctc-beam", "attention", "transducer", "transducer-greedy"]
SEARCHES = ("ctc-greedy", "ctc-beam", "attention", "transducer-greedy", "transducer")
WITH_BEAM: dict[str, str] = {"ctc-greedy": "ctc-beam", "transducer-greedy": "transducer"}
"""The beam search that does what a greedy one does."""

RECIPE_KEYS = ("method", "beam", "ctc_weight", "length_reward", "skip_blanks")
"""What a recipe says of a search."""
TUNED, TUNED_KEYS = "tuned", ("ctc_weight", "length_reward")
"""What tuning has found instead, and where a model's description says it."""


@dataclass(frozen=True)
class Search:
    """How to search."""

    method: str = "auto"
    beam: int = 10
    """Of all searches but the greedy ones."""
    ctc_weight: float = 0.5
    """attention: the CTC's share of a hypothesis's score."""
    length_reward: float = 0.0
    """attention: added for every token."""
    skip_blanks: float | None = None
    """attention, transducer: the decoder sees no frame whose CTC blank is more likely than this."""
    nbest: int = 1
    """So many hypotheses are given out; greedy searches have one."""

    def __post_init__(self) -> None:
        check_counts(beam=self.beam, nbest=self.nbest)
        if self.skip_blanks is not None and not 0 < self.skip_blanks < 1:
            raise ValueError(f"skip_blanks is {self.skip_blanks}, expected a probability between 0 and 1")


def choose_search(method: str | None, system: SystemConfig) -> str:
    """The search that a method means for a system: "auto" takes the decoder that there is, or greedy CTC,
    which is "ctc" for short."""
    if method is not None and method not in get_args(Method):
        raise ValueError(f"method is {method!r}, expected one of {', '.join(get_args(Method))}")
    kinds = {decoder.kind for decoder in system.decoders.values() if decoder.text == system.output}
    if method in (None, "auto"):
        return next((kind for kind in ("attention", "transducer") if kind in kinds), "ctc-greedy")
    if method == "ctc":
        return "ctc-greedy"
    needed = decoder_of(method)
    if needed is not None and needed not in kinds:
        raise ValueError(f'method is "{method}", but the model has no such decoder')
    return method


def decoder_of(method: str) -> str | None:
    """The kind of decoder that a search needs; None for CTC's."""
    kind = method.removesuffix("-greedy")
    return None if kind.startswith("ctc") else kind


def recipe_search(description: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `Recognizer.recognize` that a model's description names: its recipe's, and those that
    were tuned."""
    decode: dict[str, Any] = description.get("recipe", {}).get("decode", {})
    tuned: dict[str, Any] = description.get(TUNED, {})
    found = {key: decode[key] for key in RECIPE_KEYS if key in decode}
    return found | {key: tuned[key] for key in TUNED_KEYS if key in tuned}
