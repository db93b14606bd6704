"""One stream of a client: limits on what comes in, a bounded queue of what goes out."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import numpy as np

from brctc.data.resampling import ResamplingStream
from brctc.decode import OnlineRecognizer
from brctc.serve.engine import QUANTUM_S, Engine, Mark, Stream, Update
from brctc.serve.metrics import Metrics
from brctc.serve.options import ServeOptions

WAITING_S = 4.0  # of audio, of one stream: then the client has to wait
MOST_ARRIVALS = 4000


class StreamError(Exception):
    """Why a stream ends before its time. `kind` is for metrics, the text for the client."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Session:
    """A stream from its opening to its last result; to be used in the event loop."""

    def __init__(
        self, engine: Engine, metrics: Metrics, options: ServeOptions, model: str, online: OnlineRecognizer
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.metrics, self._options, self.model, self.online = metrics, options, model, online
        self._stream = Stream(engine, online, model, self._from_engine)
        self._queue: asyncio.Queue[Update | StreamError] = asyncio.Queue()
        self._room = asyncio.Event()
        self.received_s = 0.0
        self._base_s = 0.0  # of audio, before the present utterance
        self.ended = False
        """The client has sent its end, or the server stops."""
        self.stopped = False
        """By the server: what still comes is not heard."""
        self.failed: StreamError | None = None
        self.tokens: list[int] = []
        """All that was said so far."""
        self.on_close: Callable[[], None] = lambda: None
        self._arrivals: deque[tuple[float, float]] = deque(maxlen=MOST_ARRIVALS)

    @property
    def sample_rate(self) -> int:
        return self._stream.sample_rate

    def set_rate(self, sample_rate: int) -> None:
        """What the samples have; before the first ones."""
        if self.received_s and sample_rate != self.sample_rate:
            raise ValueError("the sample rate cannot change while audio comes")
        ResamplingStream(sample_rate, self.online.sample_rate)  # an error says what is wrong with it
        self._stream.sample_rate = sample_rate

    @property
    def text(self) -> str:
        """All that was said so far."""
        return self.online.model.tokenizer.decode(self.tokens)

    async def push(self, samples: np.ndarray) -> None:
        """The next samples; waits while too much is waiting."""
        if self.stopped:
            return
        block = max(1, int(QUANTUM_S * self.sample_rate))
        for first in range(0, len(samples), block):
            self._check()
            part = samples[first : first + block]
            self.received_s += len(part) / self.sample_rate
            if self.received_s > self._options.max_seconds:
                raise StreamError("too-long", f"more than {self._options.max_seconds:g} s of audio")
            self._arrivals.append((self.received_s, time.monotonic()))
            self._room.clear()
            self._stream.push(part)
            while self._stream.waiting_s > WAITING_S and self.failed is None:
                await self._room.wait()
                self._room.clear()
            if self.stopped:
                return
        self._check()

    def mark(self, what: Mark) -> None:
        """The utterance ends here, or the audio does."""
        if not self.ended:
            self.ended = what == "end"
            self._stream.mark(what)

    def stop(self) -> None:
        """The server ends it; it gets its last text all the same."""
        self.stopped = not self.ended
        self.mark("end")

    def fail(self, error: StreamError) -> None:
        """Ends the stream; what it has still to say is dropped."""
        if self.failed is None:
            self.failed = error
            self.metrics.refusals.labels(error.kind).inc()
            self._stream.close()
            self._room.set()
            self._queue.put_nowait(error)

    def close(self) -> None:
        """Nobody listens any more."""
        self._stream.close()
        self._room.set()
        self.on_close()
        self.on_close = lambda: None

    async def updates(self) -> AsyncIterator[Update]:
        """What is said, until the end; a StreamError says why there is none."""
        while True:
            update = await self._queue.get()
            if isinstance(update, StreamError):
                raise update
            yield update
            if update.done:
                return

    def count_sent(self, update: Update) -> None:
        """For metrics: it was sent just now."""
        now = time.monotonic()
        for token in update.tokens:
            self.metrics.spike.observe(max(0.0, now - self._arrived(update.base_s + token.fired_s, now)))
        for segment in update.segments:
            if segment.reason != "end":
                self.metrics.end.observe(max(0.0, segment.latency_s))

    def _arrived(self, audio_s: float, now: float) -> float:
        """When the audio came that was said then."""
        while len(self._arrivals) > 1 and self._arrivals[0][0] < audio_s - 1e-9:
            self._arrivals.popleft()
        return self._arrivals[0][1] if self._arrivals else now

    def _check(self) -> None:
        if self.failed is not None:
            raise self.failed
        if self.ended:
            raise StreamError("bad-audio", "audio came behind the end")

    def _from_engine(self, update: Update) -> None:
        """In the model thread."""
        try:
            self._loop.call_soon_threadsafe(self._take, update)
        except RuntimeError:  # the loop is closed
            self._stream.close()

    def _take(self, update: Update) -> None:
        self._room.set()
        if self.failed is not None:
            return
        if update.error is not None:
            self.fail(StreamError("bad-audio", update.error))
            return
        update.base_s = self._base_s
        if update.flushed:
            self._base_s += update.heard_s
        self.tokens += [token.token for token in update.tokens]
        if not (update.tokens or update.segments or update.flushed):
            return
        if self._queue.qsize() >= self._options.max_results:
            self.fail(StreamError("lagging", "the client does not read its results: too many wait"))
            return
        self._queue.put_nowait(update)
