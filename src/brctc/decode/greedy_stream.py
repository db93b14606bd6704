"""Tokens and segments of CTC's output as it comes: the decoder's part of a stream."""

from dataclasses import dataclass

from torch import Tensor

from brctc.data.manifest import WordTime
from brctc.data.tokens import Tokenizer
from brctc.data.units import unit_of
from brctc.decode.ctc import best_classes
from brctc.decode.endpoint import EndpointRules, EndReason
from brctc.decode.times import token_times, word_times

BLANK = 0


@dataclass
class StreamedToken:
    """A token that a stream has said, from the moment it fires."""

    token: int
    piece: str
    """What the vocabulary calls it."""
    first_frame: int
    """Encoder frame in which it fires, counted from 0."""
    last_frame: int | None
    """The last frame of its run. None while the run may go on: then it is filled in once it is known."""
    fired_s: float
    """Where in the audio the frame ends in which it fires."""
    end_s: float | None
    """Where in the audio the last frame ends, as in `Result.token_times`. Filled in with `last_frame`."""
    known_s: float
    """How much audio had been pushed when it fired: small pushes know it sooner than large ones."""

    @property
    def latency_s(self) -> float:
        """How much audio was waited for to know it. Computation is not in it."""
        return self.known_s - self.fired_s


@dataclass(frozen=True)
class Segment:
    """What was said up to an endpoint, or to the end of the audio."""

    number: int
    """Counted from 0; segments in which nothing was said are not counted."""
    text: str
    tokens: list[StreamedToken]
    token_times: tuple[WordTime, ...]
    word_times: tuple[WordTime, ...]
    """As a `Result` has them."""
    start_s: float
    """Where in the audio it begins: at the end of the one before."""
    end_s: float
    """Where the rule held that ended it, or the audio's end."""
    known_s: float
    """How much audio had been pushed when that was known."""
    reason: EndReason

    @property
    def latency_s(self) -> float:
        """How much audio came behind its last token until its end was known."""
        return self.known_s - self.token_times[-1].end_s


class GreedyDecoder:
    """The best class of every frame, repeats and blanks left out; with rules, cut into segments.

    Tokens and segments depend on frames alone, not on how many come at a time.
    """

    def __init__(
        self, tokenizer: Tokenizer, clock: tuple[float, float], rules: EndpointRules | None = None
    ) -> None:
        """`clock`: of the encoder's frames, as `brctc.decode.times.frame_clock` gives it."""
        self._tokenizer, self._clock, self._rules = tokenizer, clock, rules
        self.tokens: list[int] = []
        """All that was said so far, as classes."""
        self.current: list[StreamedToken] = []
        """Those of the segment that goes on; there are none without rules."""
        self.number = 0
        """Of the segment that goes on."""
        self._ended: list[Segment] = []
        self._heard_s = 0.0
        self._frames = 0
        self._last = BLANK  # class of the last frame
        self._running: StreamedToken | None = None
        self._first = 0  # frame of the segment
        self._silent = 0  # blank frames since the last token, or since the segment began

    def decode(self, logits: Tensor, heard_s: float) -> list[StreamedToken]:
        """The tokens that begin in the next (T, C) frames, of so many seconds of audio in all."""
        self._heard_s = heard_s
        fired = []
        for token in best_classes(logits)[1].tolist():
            if token != self._last:
                self._end_run()
                if token != BLANK:
                    fired.append(self._fire(token))
            self._last = token
            self._silent = self._silent + 1 if token == BLANK else 0
            self._frames += 1
            if self._rules is not None:
                self._check_end(self._rules)
        return fired

    def finish(self, heard_s: float) -> None:
        """The audio ends here, and with it what is being said."""
        self._heard_s = heard_s
        self._end_run()
        if self._rules is not None:
            self._end_segment("end", heard_s)

    def pop_segments(self) -> list[Segment]:
        """Those that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def segment_start_s(self) -> float:
        """Where the segment begins that goes on."""
        return self._time(self._first) if self._first else 0.0

    def _fire(self, token: int) -> StreamedToken:
        piece = self._tokenizer.pieces[token]
        fired_s = self._time(self._frames + 1)
        self._running = StreamedToken(token, piece, self._frames, None, fired_s, None, self._heard_s)
        self.tokens.append(token)
        if self._rules is not None:
            self.current.append(self._running)
        return self._running

    def _end_run(self) -> None:
        if self._running is not None:
            self._running.last_frame = self._frames - 1
            self._running.end_s = self._time(self._frames)
            self._running = None

    def _check_end(self, rules: EndpointRules) -> None:
        frame_s = self._clock[1]
        length_s = (self._frames - self._first) * frame_s
        if reason := rules.reason(bool(self.current), self._silent * frame_s, length_s):
            self._end_segment(reason, self._time(self._frames))

    def _end_segment(self, reason: EndReason, end_s: float) -> None:
        tokens, start_s = self.current, self.segment_start_s
        self._first, self._silent = self._frames, 0
        if not tokens:
            return
        self.current = []
        ids = [token.token for token in tokens]
        last = [self._frames - 1 if token.last_frame is None else token.last_frame for token in tokens]
        first, pieces = [token.first_frame for token in tokens], [token.piece for token in tokens]
        spoken = token_times(pieces, first, last, *self._clock, self._heard_s)
        words = word_times(ids, spoken, self._tokenizer, unit_of(self._tokenizer.kind))
        text, times = self._tokenizer.decode(ids), (spoken, words)
        self._ended.append(Segment(self.number, text, tokens, *times, start_s, end_s, self._heard_s, reason))
        self.number += 1

    def _time(self, frame: int) -> float:
        """When a frame begins, and the one before it ends."""
        first_s, frame_s = self._clock
        # a frame's features can be there a little before all of its time is
        return min(first_s + frame * frame_s, self._heard_s)
