"""Files that others are to read: whole or not there at all."""

import os
from pathlib import Path


def write_whole(path: str | Path, text: str) -> None:
    """Writes the file beside its place, then moves it there; folders are made as needed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
