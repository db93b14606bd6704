"""Recognition in several processes, where there is no GPU: each has the model and one thread."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch

from brctc.decode.recognizer import Recognizer, best_device
from brctc.decode.result import Result
from brctc.decode.sources import Source, read_source
from brctc.plugins import load_plugins

_recognizer: Recognizer | None = None  # of a worker process


class Recognized(NamedTuple):
    """What became of some sources."""

    results: list[Result]
    failed: list[str]
    """Why others could not be read, with their names."""


def recognize_readable(
    recognizer: Recognizer, sources: Sequence[Source], options: dict[str, Any]
) -> Recognized:
    """Recognizes what can be read; what cannot does not stop the others."""
    inputs, failed = [], []
    for source in sources:
        try:
            inputs.append(read_source(source, recognizer.model))
        except (ValueError, OSError, MemoryError) as error:
            failed.append(str(error) or type(error).__name__)
    results = recognizer.recognize(inputs, batch_size=max(1, len(inputs)), **options) if inputs else []
    return Recognized(results, failed)


class RecognizerPool:
    """A model in so many processes; with one, or with a GPU, in this one. Use it in a `with` block."""

    def __init__(self, directory: str | Path, jobs: int = 1) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, expected at least 1")
        self.recognizer = Recognizer.from_directory(directory)
        self._pool: ProcessPoolExecutor | None = None
        self._jobs = 1 if best_device().type == "cuda" else jobs
        if self._jobs > 1:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["brctc.decode.pool"])
            self._pool = ProcessPoolExecutor(
                self._jobs, mp_context=context, initializer=_begin, initargs=(str(directory),)
            )

    def __enter__(self) -> "RecognizerPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def recognize(self, batches: Iterable[Sequence[Source]], **options: Any) -> Iterator[Recognized]:
        """What becomes of each batch, in order; `options` are those of `Recognizer.recognize`."""
        if self._pool is None:
            yield from (recognize_readable(self.recognizer, batch, options) for batch in batches)
            return
        waiting: deque[Future[Recognized]] = deque()
        try:
            for batch in batches:
                waiting.append(self._pool.submit(_recognize, list(batch), options))
                if len(waiting) > 2 * self._jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise ChildProcessError("a process that recognized speech has died: use fewer --jobs") from None


def _begin(directory: str) -> None:
    global _recognizer  # noqa: PLW0603 (a process has one)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    torch.set_num_threads(1)
    load_plugins()
    _recognizer = Recognizer.from_directory(directory, "cpu")


def _recognize(sources: Sequence[Source], options: dict[str, Any]) -> Recognized:
    assert _recognizer is not None, "a worker begins with its model"
    return recognize_readable(_recognizer, sources, options)
