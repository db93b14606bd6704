"""What a recognizer says of an utterance."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from brctc.data.manifest import WordTime


class Alternative(NamedTuple):
    """One of the best hypotheses."""

    text: str
    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Result:
    """The best hypothesis for one utterance, and what it cost."""

    id: str
    text: str
    tokens: list[int]
    score: float
    """Log score of the search that found it."""
    factor: float
    """Encoder frames kept by trimming / all of them; 1 for a model that does not trim."""
    duration_s: float | None
    """Of the audio; None for features that have no clock."""
    encoder_s: float
    """Computation, features excluded; in a batch, an equal share of it."""
    decoder_s: float
    frames: list[int] | None
    """Encoder frame in which each token begins, counted from 0."""
    last_frames: list[int] | None
    """The last frame of each token's run, which CTC may repeat; the first one where it does not."""
    token_times: tuple[WordTime, ...] | None
    """From the start of a token's first frame to the end of its last one."""
    word_times: tuple[WordTime, ...] | None
    """The same of words; if tokens are characters, of each Chinese or Japanese one (`brctc.data.units`)."""
    no_times: str | None
    """Why frames and times are None."""
    nbest: tuple[Alternative, ...] = ()
    """The best hypotheses, this one first, where several were asked for."""
    others: Mapping[str, str] = field(default_factory=dict)
    """What other CTC heads say, by the name of their text: the `transcript` beside a translation."""
