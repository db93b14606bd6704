"""Files are whole or not there at all, and what goes wrong with one is said with its name."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from brctc.files import naming, new_directory, read_json, write_bytes, write_json


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


@pytest.mark.parametrize("size", [0, 100, 8192])
def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path, size):
    path = tmp_path / "tokens.json"
    write_json(path, ["old"])
    with small_disk(size), pytest.raises(OSError, match=r"tokens\.json") as caught:
        write_json(path, ["new" * 10_000])
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert read_json(path) == ["old"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_cannot_be_filled_is_not_there(tmp_path):
    with small_disk(10), pytest.raises(OSError), new_directory(tmp_path / "new") as folder:  # noqa: PT011
        (folder / "file").write_bytes(b"x" * 100)
    assert list(tmp_path.iterdir()) == []


def test_only_what_has_no_name_gets_one():
    with pytest.raises(FileNotFoundError) as caught, naming("other"):
        open("/no/such/file")  # noqa: SIM115
    assert caught.value.filename == "/no/such/file"
    message = "a message of its own"
    with pytest.raises(OSError, match=f"^{message}$"), naming("other"):
        raise OSError(message)


def test_bytes_are_replaced_whole(tmp_path):
    path = tmp_path / "a" / "b"
    for content in (b"one", b"", b"three"):
        write_bytes(path, content)
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
