"""What is in a folder, to compare."""

from pathlib import Path


def files_in(folder: Path) -> list[Path]:
    """All files of prepared splits; the lock is none."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in files_in(folder)}


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """Which file each one is, and when it was written: a file that is written again is another one."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in files_in(folder)
    }
