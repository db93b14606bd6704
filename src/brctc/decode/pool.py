"""Recognition in several processes, where there is no GPU: each has the model and one thread."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch

from brctc.decode.methods import Search
from brctc.decode.recognizer import Recognizer, best_device
from brctc.decode.result import Result
from brctc.decode.sources import Input, Source, read_source
from brctc.plugins import load_plugins

T = TypeVar("T")
_recognizer: Recognizer | None = None  # of a worker process


class Recognized(NamedTuple):
    """What became of some sources."""

    results: list[Result]
    failed: list[str]
    """Why others could not be read, with their names."""


def recognize_grid(
    recognizer: Recognizer, sources: Sequence[Source], searches: Sequence[Search]
) -> list[tuple[Result, ...]]:
    """For each source, the result of every search, of one pass of the encoder."""
    return list(recognizer.recognize_each(sources, searches, max(1, len(sources)), times=False))


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
    results = _recognize_together(recognizer, inputs, options, failed)
    return Recognized(results, failed)


def _recognize_together(
    recognizer: Recognizer, inputs: Sequence[Input], options: dict[str, Any], failed: list[str]
) -> list[Result]:
    """Results of a batch. If it is too much for the memory, each alone; what is too much goes to `failed`."""
    if not inputs:
        return []
    try:
        return recognizer.recognize(inputs, batch_size=len(inputs), **options)
    except (RuntimeError, MemoryError) as error:  # torch's errors of memory are RuntimeErrors
        if len(inputs) == 1:
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            failed.append(f"{inputs[0].id}: it could not be recognized: {reason[0]}")
            return []
    alone = [_recognize_together(recognizer, [item], options, failed) for item in inputs]
    return [result for results in alone for result in results]


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
        yield from self._run(recognize_readable, batches, options)

    def recognize_grid(
        self, batches: Iterable[Sequence[Source]], searches: Sequence[Search]
    ) -> Iterator[list[tuple[Result, ...]]]:
        """Of each batch, for each source, the result of every search."""
        yield from self._run(recognize_grid, batches, searches)

    def _run(
        self,
        work: Callable[[Recognizer, Sequence[Source], Any], T],
        batches: Iterable[Sequence[Source]],
        how: Any,
    ) -> Iterator[T]:
        """What `work` makes of each batch, in order, in whatever process."""
        if self._pool is None:
            yield from (work(self.recognizer, batch, how) for batch in batches)
            return
        waiting: deque[Future[T]] = deque()
        try:
            for batch in batches:
                waiting.append(self._pool.submit(_work, work, list(batch), how))
                if len(waiting) > 2 * self._jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process that recognized speech has died, perhaps for lack of memory: use fewer --jobs"
            ) from None


def _begin(directory: str) -> None:
    global _recognizer  # noqa: PLW0603 (a process has one)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    torch.set_num_threads(1)
    load_plugins()
    _recognizer = Recognizer.from_directory(directory, "cpu")


def _work(work: Callable[[Recognizer, Sequence[Source], Any], T], sources: Sequence[Source], how: Any) -> T:
    assert _recognizer is not None, "a worker begins with its model"
    return work(_recognizer, sources, how)
