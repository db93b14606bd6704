"""Files that are whole or not there at all, whenever the power goes."""

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"  # the beginning of every name that is not finished yet
_NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")
LONGEST_NAME = 200
"""Bytes: file systems take 255, and endings and the names of unfinished files need some of them."""
HASH_DIGITS = 12


def write_bytes(path: Path, data: bytes) -> None:
    """Writes the file beside its place, then moves it there; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = unfinished_path(path)
    try:
        with naming(path), unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Errors of the system say which file they are about: that of a full disk does not by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_text(path: Path, text: str) -> None:
    """Writes text the same way."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Writes plain data the same way."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def to_plain(value: Any) -> Any:
    """What JSON takes: dataclasses and named tuples as objects with names; NaN and infinities as text, since
    JSON has none."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if named := getattr(value, "_asdict", None):
        value = named()
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    """Plain data from a file; one that is not JSON is refused by name."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error or 'it is nested too deeply'}") from None


def json_digest(value: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of what is in a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def file_name(utterance: str) -> str:
    """What the files of an utterance are called, without an ending; never a path.

    Plain ids stay as they are. What could lead elsewhere, or is no name, becomes "_"; a long one is cut, and
    a hash of the whole tells it from others that begin alike.
    """
    name = re.sub(r"^\.+", lambda dots: "_" * len(dots[0]), _NOT_IN_NAMES.sub("_", utterance)) or "_"
    encoded = name.encode()
    if len(encoded) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(utterance.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]
    kept = encoded[: LONGEST_NAME - HASH_DIGITS - 1].decode(errors="ignore")  # no half of a character
    return f"{kept}-{digest}"


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill; it appears at `path`, complete and on the disk, when the block ends well."""
    unfinished = unfinished_path(path)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        for file in unfinished.iterdir():
            sync(file)
        sync(unfinished)
        if path.exists():  # written by a run that was resumed from before it
            remove_directory(path)
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    sync(path.parent)


@contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Whoever comes second says so and waits. The lock dies with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting: {waiting}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unfinished_path(path: Path) -> Path:
    """Where a file or directory is written before it gets its name. Not tempfile's: what that makes is for
    its owner's eyes only, whatever the umask says."""
    return path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")


def remove_directory(path: Path) -> None:
    """Takes a directory away; should the process die meanwhile, no half of it keeps its name."""
    doomed = path.with_name(f"{TEMPORARY}{path.name}-removed")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def remove_unfinished(directory: Path) -> None:
    """Clears away what a killed process has left."""
    for path in directory.glob(f"{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def sync(path: Path) -> None:
    """Waits until a file's contents, or a directory's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
