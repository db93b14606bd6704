"""Who else is training: a sign of life from every process, so that a dead or hung one is named.

Every process writes its step and the time into torchrun's store every few seconds. Who has given no sign for
SILENT_S seconds, or is stuck at a step for STUCK_S while others wait, is reported by rank, host and process
number, and this process ends: torchrun then restarts them all, if it was told to (--max-restarts).
"""

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

SIGN_S = 2.0
SILENT_S = 90.0
STUCK_S = 900.0
"""Longer than a checkpoint takes, and than collectives wait."""
FAILED = 1
LOST = re.compile(
    r"Connection (?:closed|reset|refused)(?: by peer)?|Broken pipe|[Tt]imed out[^.\n]*|NCCL [^.\n]*"
)
"""What torch's backends say when a process is gone."""


class PeerError(ConnectionError):
    """Another process is dead or hung; the message names it."""


@dataclass(frozen=True)
class Sign:
    """The last that was heard of a process."""

    rank: int
    host: str
    pid: int
    step: int
    age_s: float

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host}, last at step {self.step})"


class Peers:
    """The other processes, in a `with` block. `on_loss` is called in a thread, and ends the process."""

    def __init__(
        self, store: Any, rank: int, count: int, on_loss: Callable[[str], None] | None = None
    ) -> None:
        self._store, self.rank, self.count = store, rank, count
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._on_loss = on_loss or _end
        self._ended = threading.Event()
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._moved: dict[int, tuple[int, float]] = {}
        self.step = 0
        self._thread = threading.Thread(target=self._run, name="brctc-peers", daemon=True)

    def __enter__(self) -> "Peers":
        self._give_sign()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def pass_gate(self, name: str) -> None:
        """The first process opens the gate; the others wait for it, as long as it lives."""
        if self.rank == 0:
            self._store.set(f"gate/{name}", b"open")
            return
        while not self._store.check([f"gate/{name}"]):
            time.sleep(0.05)

    @contextmanager
    def named_on_failure(self) -> Iterator[None]:
        """If a collective fails in the block because a process has died, this one says which, and ends."""
        try:
            yield
        except RuntimeError as error:
            found = LOST.search(str(error))
            if found is None:
                raise
            if threading.current_thread() is threading.main_thread():
                # torchrun ends all processes as soon as one has died: not before it is said which
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            problem = self._explain(found.group())
            self._on_loss(problem)
            raise PeerError(problem) from error

    def _explain(self, error: str) -> str:
        try:
            return self._find_lost(error)
        except RuntimeError:  # the store is gone
            return f"lost the process that started this training: {error}"

    def _find_lost(self, error: str) -> str:
        """Waits a little for signs of life to run out: the connection breaks before."""
        deadline = time.monotonic() + 4 * SIGN_S
        while time.monotonic() < deadline:
            lost = [sign for sign in self._signs() if sign.age_s > 2 * SIGN_S or self._is_gone(sign)]
            if lost:
                return f"lost {', '.join(map(str, lost))}: {error}"
            time.sleep(0.2)
        behind = [sign for sign in self._signs() if sign.step < self.step]
        return f"{', '.join(map(str, behind)) or 'another process'} did not keep up: {error}"

    def _is_gone(self, sign: Sign) -> bool:
        return sign.host == self._host and not os.path.exists(f"/proc/{sign.pid}")

    def _give_sign(self) -> None:
        content = {"host": self._host, "pid": self._pid, "step": self.step, "time": time.time()}
        self._store.set(f"sign/{self.rank}", json.dumps(content).encode())

    def _signs(self) -> list[Sign]:
        """Of all others, with how long ago each has changed by this process's own clock."""
        found = []
        for rank in range(self.count):
            key = f"sign/{rank}"
            if rank == self.rank or not self._store.check([key]):
                continue
            raw, now = self._store.get(key), time.monotonic()
            if self._seen.get(rank, (b"", 0.0))[0] != raw:
                self._seen[rank] = raw, now
            content = json.loads(raw)
            age_s = now - self._seen[rank][1]
            found.append(Sign(rank, content["host"], content["pid"], content["step"], age_s))
        return found

    def _run(self) -> None:
        while not self._ended.wait(SIGN_S):
            try:
                self._give_sign()
                if problem := self._problem():
                    self._on_loss(problem)
                    return
            except RuntimeError:  # the store is gone, and with it whoever started these processes
                if not self._ended.is_set():
                    self._on_loss("the process that started this training is gone")
                return

    def _problem(self) -> str | None:
        now = time.monotonic()
        for sign in self._signs():
            if sign.age_s > SILENT_S:
                return f"no sign of {sign} for {sign.age_s:.0f} s"
            step, since = self._moved.get(sign.rank, (-1, now))
            if step != sign.step:
                self._moved[sign.rank] = sign.step, now
            elif sign.step < self.step and now - since > STUCK_S:
                return f"{sign} is stuck while others wait at step {self.step}"
        return None


def _end(problem: str) -> None:
    print(
        f"brctc train: {problem}: this process ends, so that all can be restarted",
        file=sys.stderr,
        flush=True,
    )
    os._exit(FAILED)
