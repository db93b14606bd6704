"""All that the protocols share: the models, the model thread, who is connected."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from brctc.decode import OnlineRecognizer, Recognizer, Result
from brctc.models import load_model
from brctc.runs import model_directory
from brctc.serve.engine import Engine
from brctc.serve.metrics import Metrics
from brctc.serve.options import ServeOptions
from brctc.serve.session import Session, StreamError

FINAL_WORDS_S = 5.0  # for streams that are ended by the server itself


class RefusalError(Exception):
    """A request that is not served, with a status of HTTP."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status, self.kind = status, kind


@dataclass(frozen=True)
class Served:
    """A model by its name."""

    name: str
    recognizer: Recognizer | None
    """For files, of a model that takes no streams."""
    online: OnlineRecognizer | None
    """For files and streams, of one that does."""

    @property
    def sample_rate(self) -> int:
        found = self.online.model if self.online else self.recognizer.model if self.recognizer else None
        assert found is not None
        assert found.features is not None
        return found.features.sample_rate


def load_served(options: ServeOptions) -> dict[str, Served]:
    """The models by their names: that of the run, or the one that is given."""
    found: dict[str, Served] = {}
    for given in options.models:
        name, sign, path = given.partition("=")
        if not sign:
            path = given
            full = Path(path).resolve()
            name = full.parent.name if full.name == "model" else full.name
        if name in found:
            raise ValueError(f"two models would be called {name}: say NAME={path}")
        model = load_model(model_directory(path))
        if model.features is None:
            raise ValueError(f"{path}: the model takes features that are not made of audio")
        if model.system.config.streaming:
            found[name] = Served(name, None, OnlineRecognizer(model, options.rules))
        else:
            found[name] = Served(name, Recognizer(model), None)
    return found


class Hub:
    """A server's models and streams. `run` is its life."""

    def __init__(self, options: ServeOptions) -> None:
        self.options, self.metrics = options, Metrics()
        self.models = load_served(options)
        self.engine = Engine(self.metrics, options.window_s, options.max_batch, options.threads)
        self.draining = False
        self._sessions: set[Session] = set()
        self._files = 0
        self._offline = ThreadPoolExecutor(1, "brctc-files")

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """The model thread runs inside."""
        self.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.engine.stop)
            self._offline.shutdown(wait=False, cancel_futures=True)

    def find(self, name: str | None) -> Served:
        """A model; without a name, or with one of somebody else's if there is one model only, the first."""
        if name in self.models:
            return self.models[name]
        if name is None or len(self.models) == 1:
            return next(iter(self.models.values()))
        raise self.refuse(404, "no-model", f"there is no model {name!r}, but {', '.join(self.models)}")

    def open(self, protocol: str, model: str | None, sample_rate: int | None = None) -> Session:
        """A stream; an error says why there is none. Whoever opens it closes it."""
        served = self.find(model)
        self.check_room()
        if served.online is None:
            raise self.refuse(400, "offline", f"{served.name} takes whole files, no streams")
        session = Session(self.engine, self.metrics, self.options, served.name, served.online)
        if sample_rate is not None:
            try:
                session.set_rate(sample_rate)
            except (TypeError, ValueError) as error:
                raise self.refuse(400, "bad-rate", str(error)) from None
        self._sessions.add(session)
        self.metrics.opened.labels(protocol).inc()
        self.metrics.streams.labels(protocol).inc()
        session.on_close = functools.partial(self._forget, session, protocol)
        return session

    async def recognize(self, recognizer: Recognizer, path: Path) -> Result:
        """A whole file, by a model that takes no streams; one at a time."""
        self.check_room()
        self._files += 1
        try:
            loop = asyncio.get_running_loop()
            (result,) = await loop.run_in_executor(self._offline, recognizer.recognize, [path])
            return result
        finally:
            self._files -= 1

    def check_room(self) -> None:
        """Refuses more than there may be at once."""
        if self.draining:
            raise self.refuse(503, "draining", "the server is about to stop")
        if len(self._sessions) + self._files >= self.options.max_streams:
            raise self.refuse(503, "full", f"there are {self.options.max_streams} streams already")

    def refuse(self, status: int, kind: str, text: str) -> RefusalError:
        """Counts it."""
        self.metrics.refusals.labels(kind).inc()
        return RefusalError(status, kind, text)

    @property
    def num_streams(self) -> int:
        return len(self._sessions)

    async def drain(self) -> None:
        """No new streams. Those that are there may end; then they are ended, and get their last text."""
        self.draining = True
        await self._emptied(self.options.drain_s)
        for session in list(self._sessions):
            session.stop()
        await self._emptied(FINAL_WORDS_S)
        for session in list(self._sessions):
            session.fail(StreamError("draining", "the server stops"))

    async def _emptied(self, within_s: float) -> None:
        until = time.monotonic() + within_s
        while self._sessions and time.monotonic() < until:
            await asyncio.sleep(0.02)

    def _forget(self, session: Session, protocol: str) -> None:
        self._sessions.discard(session)
        self.metrics.streams.labels(protocol).dec()
