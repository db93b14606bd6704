"""The model thread: it computes all streams that have something new, together, turn by turn."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from brctc.decode import (
    OnlineRecognizer,
    PushError,
    Segment,
    StreamedToken,
    StreamingRecognizer,
    flush_together,
    push_together,
)
from brctc.serve.metrics import Metrics

QUANTUM_S, ALONE_S = 0.32, 2.0
"""How much audio of a stream one turn takes: nobody waits long for one that has sent a whole file."""
Mark = Literal["flush", "end"]
_log = logging.getLogger("brctc.serve")


@dataclass
class Update:
    """What a turn has made of a stream."""

    tokens: list[StreamedToken] = field(default_factory=list)
    """New ones."""
    segments: list[Segment] = field(default_factory=list)
    """Those that have ended."""
    current: tuple[StreamedToken, ...] = ()
    """Of the segment that goes on."""
    current_number: int = 0
    text: str = ""
    """Of the segment that goes on."""
    start_s: float = 0.0
    """Where that one begins."""
    heard_s: float = 0.0
    """Of the utterance, so far."""
    base_s: float = 0.0
    """Of audio before the utterance."""
    flushed: bool = False
    """An utterance was ended by the client; the next one is counted from 0 again."""
    done: bool = False
    error: str | None = None


class Stream:
    """The engine's side of a stream: audio that waits, and a recognizer for the model thread alone."""

    def __init__(
        self, engine: "Engine", online: OnlineRecognizer, model: str, on_update: Callable[[Update], None]
    ) -> None:
        self._engine, self.online, self.model, self.on_update = engine, online, model, on_update
        self.sample_rate = online.sample_rate
        self.waiting: deque[tuple[float, np.ndarray | Mark]] = deque()  # with when it came
        self.waiting_s = 0.0
        self.closed = False
        self.recognizer: StreamingRecognizer | None = None

    def push(self, samples: np.ndarray) -> None:
        """The next samples."""
        self._engine.put(self, samples)

    def mark(self, what: Mark) -> None:
        """The utterance ends here, or the audio does."""
        self._engine.put(self, what)

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._engine.drop(self)

    def take(self, most_s: float) -> tuple[np.ndarray | None, Mark | None, float]:
        """What the next turn gets, and since when it waits; the engine's lock is held."""
        parts: list[np.ndarray] = []
        taken_s, since, mark = 0.0, self.waiting[0][0], None
        while self.waiting and mark is None:
            item = self.waiting[0][1]
            if isinstance(item, str):
                mark = item
            elif parts and taken_s + len(item) / self.sample_rate > most_s:
                break
            else:
                parts.append(item)
                taken_s += len(item) / self.sample_rate
            self.waiting.popleft()
        self.waiting_s -= taken_s
        samples = None if not parts else parts[0] if len(parts) == 1 else np.concatenate(parts)
        return samples, mark, since


class Engine:
    """One thread for the models; streams of one model share its steps."""

    def __init__(
        self, metrics: Metrics, window_s: float = 0.010, max_batch: int = 32, threads: int = 1
    ) -> None:
        self._metrics, self._window_s, self._max_batch, self._threads = metrics, window_s, max_batch, threads
        self._ready: dict[Stream, None] = {}  # in the order in which they came
        self._condition = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="brctc-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its turn."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def put(self, stream: Stream, item: np.ndarray | Mark) -> None:
        """Gives a stream something to do."""
        with self._condition:
            if stream.closed:
                return
            stream.waiting.append((time.monotonic(), item))
            if not isinstance(item, str):
                stream.waiting_s += len(item) / stream.sample_rate
            self._ready.setdefault(stream)
            self._condition.notify()

    def drop(self, stream: Stream) -> None:
        """Forgets what waits of a stream."""
        with self._condition:
            stream.closed = True
            stream.waiting.clear()
            stream.waiting_s = 0.0
            self._ready.pop(stream, None)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while streams := self._wait():
            started = time.monotonic()
            try:
                updates = self._turn(streams)
            except Exception:  # whatever it is, it ends these streams and no others
                _log.exception("a turn of %d streams failed", len(streams))
                updates = [Update(error="the server could not compute it") for _ in streams]
            self._metrics.step.observe(time.monotonic() - started)
            self._metrics.batch.observe(len(streams))
            for stream, update in zip(streams, updates, strict=True):
                if update.error is not None or update.done:
                    self.drop(stream)
                stream.on_update(update)

    def _wait(self) -> list[Stream]:
        """The streams of the next turn; none when it is over."""
        with self._condition:
            while not self._stopped:
                if not self._ready:
                    self._condition.wait_for(lambda: self._ready or self._stopped)
                    # those who come a moment later share the turn; who has waited during one waits no more
                    self._condition.wait_for(
                        lambda: len(self._ready) >= self._max_batch or self._stopped, self._window_s
                    )
                streams = list(self._ready)[: self._max_batch]
                for stream in streams:
                    del self._ready[stream]
                if streams:  # not dropped in the meantime
                    return streams
            return []

    def _turn(self, streams: Sequence[Stream]) -> list[Update]:
        quantum_s = QUANTUM_S if len(streams) > 1 else ALONE_S
        now = time.monotonic()
        taken = []
        with self._condition:
            for stream in streams:
                if not stream.waiting:  # closed since
                    taken.append((None, None, now))
                    continue
                taken.append(stream.take(quantum_s))
                if stream.waiting:
                    self._ready.setdefault(stream)
        updates = [Update() for _ in streams]
        for stream, (_, _, since) in zip(streams, taken, strict=True):
            self._metrics.queue.observe(now - since)
            if stream.recognizer is None:
                stream.recognizer = stream.online.create_stream(stream.sample_rate)
        for model in dict.fromkeys(stream.model for stream in streams):
            places = [i for i, stream in enumerate(streams) if stream.model == model]
            self._hear(model, streams, [(i, taken[i][0]) for i in places if taken[i][0] is not None], updates)
            flushed = [i for i in places if taken[i][1] is not None and updates[i].error is None]
            self._flush(streams, flushed, updates)
            for i in flushed:
                updates[i].flushed, updates[i].done = True, taken[i][1] == "end"
        for stream, update in zip(streams, updates, strict=True):
            _complete(stream, update)
        return updates

    def _hear(
        self,
        model: str,
        streams: Sequence[Stream],
        pushes: Sequence[tuple[int, np.ndarray | None]],
        updates: list[Update],
    ) -> None:
        """Pushes, of which bad ones fail alone."""
        together = [(_recognizer(streams[i]), samples) for i, samples in pushes if samples is not None]
        try:
            fired = push_together(together)
        except PushError as error:
            fired = error.fired
            for place, problem in error.errors.items():
                updates[pushes[place][0]].error = str(problem)
        for (i, samples), tokens in zip(pushes, fired, strict=True):
            updates[i].tokens += tokens
            seconds = 0.0 if samples is None else len(samples) / streams[i].sample_rate
            self._metrics.audio.labels(model).inc(seconds)
            self._metrics.tokens.labels(model).inc(len(tokens))

    def _flush(self, streams: Sequence[Stream], places: Sequence[int], updates: list[Update]) -> None:
        for i, tokens in zip(places, flush_together([_recognizer(streams[i]) for i in places]), strict=True):
            updates[i].tokens += tokens


def _recognizer(stream: Stream) -> StreamingRecognizer:
    assert stream.recognizer is not None, "a turn begins with it"
    return stream.recognizer


def _complete(stream: Stream, update: Update) -> None:
    """A picture of the stream as it is now; after a flush the next utterance begins."""
    recognizer = _recognizer(stream)
    decoder = recognizer.decoder
    update.segments, update.heard_s = recognizer.pop_segments(), recognizer.heard_s
    if update.flushed:
        recognizer.reset()
        return
    update.current, update.current_number = tuple(decoder.current), decoder.number
    update.start_s = decoder.segment_start_s
    update.text = recognizer.model.tokenizer.decode(token.token for token in decoder.current)
