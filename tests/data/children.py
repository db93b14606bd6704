"""Processes that prepare splits and can be killed. They start at once: what they import is loaded before."""

import errno
import multiprocessing
import os
import resource
import signal
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import lhotse  # noqa: F401 (loaded before)
import scipy.signal  # noqa: F401

from brctc.data import FeatureConfig, RowSource, Storage, prepare, prepare_split

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.data.children"])
CONFIG = FeatureConfig(num_bins=20)
ITEMS = 10
"""Of a shard, so that a small corpus has many."""
FULL = 7
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
"""File operations, as Python's audit hooks call them; and opening to write."""


def storage(speeds: tuple[float, ...] = (1.0, 1.1)) -> Storage:
    return Storage.of_audio(CONFIG, "features", speeds)


def prepare_here(manifest: Path, out: Path, speeds: tuple[float, ...] = (1.0, 1.1), **options: Any) -> Any:
    """In this process, with small shards."""
    usual = prepare.LEAST_ITEMS
    prepare.LEAST_ITEMS = ITEMS
    try:
        return prepare_split(RowSource(manifest), out, "train", storage(speeds), **options)
    finally:
        prepare.LEAST_ITEMS = usual


def start_preparing(
    manifest: Path,
    out: Path,
    speeds: tuple[float, ...] = (1.0, 1.1),
    *,
    die_at: int | None = None,
    largest_file: int | None = None,
    **options: Any,
) -> BaseProcess:
    """In another process. It kills itself before its file operation number `die_at`; a file that grows beyond
    `largest_file` bytes fails, as on a full disk; the exit code is FULL if the error names a shard's file."""
    child = CONTEXT.Process(target=_prepare, args=(manifest, out, speeds, die_at, largest_file, options))
    child.start()
    return child


def _prepare(
    manifest: Path,
    out: Path,
    speeds: tuple[float, ...],
    die_at: int | None,
    largest_file: int | None,
    options: dict[str, Any],
) -> None:
    if die_at is not None:
        _die_at(die_at, out)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    try:
        prepare_here(manifest, out, speeds, **options)
    except OSError as error:
        named = Path(error.filename or "").parent.parent == out
        raise SystemExit(FULL if error.errno == errno.EFBIG and named else 1) from None


def _die_at(number: int, folder: Path) -> None:
    """Every change of a file is counted."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(arguments[1], str) and arguments[1][0] in "wxa"
        if event in CHANGES or (writes and str(arguments[0]).startswith(str(folder))):
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(hook)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(state[1]) == pid and state[0] != "Z":
            found.append(int(path.parent.name))
    return found
