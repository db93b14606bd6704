"""One shard of a prepared split, in lhotse's Shar format.

    cuts.000000.jsonl.gz   lhotse cuts: id, duration, texts, speaker, word times, and where the data are
    features.000000.tar    features as float16 .npy files, or
    recording.000000.tar   audio as FLAC
    pairs.000000.jsonl.gz  texts alone

`CutSet.from_shar` reads them one after the other. Each cut also knows the place of its data in the tar
file, so that batches can be sampled from the cuts alone and data are read when a batch is made: lhotse's own
reader holds the data of every cut that waits in the sampler's buffer. The same input gives the same bytes.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

import numpy as np

from brctc.data.batch import Example
from brctc.data.manifest import WordTime
from brctc.data.source import Storage
from brctc.files import file_digest, naming, unfinished_path

HEAD_BYTES = 4096
"""How much of each file is looked at when a split is opened."""
_NPY_HEAD = re.compile(rb"\{'descr': '<f2', 'fortran_order': False, 'shape': \((\d+), (\d+)\), \}")
DATA_FIELDS = {"features": "features", "audio": "recording"}


class Place(NamedTuple):
    """Where an example's data are in its shard's tar file."""

    offset: int
    size: int


def shard_names(kind: str, number: int) -> tuple[str, ...]:
    """The files of a shard: its list of examples, and their data if there are any."""
    if kind == "text":
        return (f"pairs.{number:06d}.jsonl.gz",)
    return f"cuts.{number:06d}.jsonl.gz", f"{DATA_FIELDS[kind]}.{number:06d}.tar"


def data_file(list_file: str | Path, kind: str) -> Path:
    """The tar file beside a list of cuts."""
    path = Path(list_file)
    return path.with_name(f"{DATA_FIELDS[kind]}.{path.name.split('.')[1]}.tar")


class ShardWriter:
    """Writes the examples of one shard; files get their names in `finish`, when they are whole.

    lhotse's own writer is not used: it does not tell where the data come to lie, and its lists hold the time.
    """

    def __init__(self, folder: Path, number: int, storage: Storage) -> None:
        self._paths = [folder / name for name in shard_names(storage.kind, number)]
        self.storage = storage
        self._file = unfinished_path(self._paths[0]).open("wb")
        self._lines = gzip.GzipFile("", "wb", fileobj=self._file, mtime=0)
        self._tar = None if storage.kind == "text" else tarfile.open(unfinished_path(self._paths[1]), "w")  # noqa: SIM115

    def add_features(self, example: Example, features: np.ndarray) -> None:
        """An example with its features (T, F)."""
        from lhotse import Features

        storage, config = self.storage, self.storage.features
        key = safe_name(example.id)
        manifest = Features(
            type="columns" if config is None else "kaldi-fbank",
            num_frames=len(features),
            num_features=storage.feature_dim,
            frame_shift=storage.frame_shift_s,
            sampling_rate=round(1 / storage.frame_shift_s) if config is None else config.sample_rate,
            start=0,
            duration=example.duration_s,
            storage_type="shar",
            storage_path="",
            storage_key="",
            recording_id=key,
            channels=0,
        )
        data = io.BytesIO()
        np.lib.format.write_array(data, features.astype(np.float16), allow_pickle=False)
        place = self._add_data(f"{key}.npy", data.getvalue(), key, manifest.to_dict())
        self._add_cut(example, key, place, features=manifest)

    def add_audio(self, example: Example, samples: np.ndarray, sample_rate: int) -> None:
        """An example with its samples (T), stored with 16 bits each."""
        from lhotse import AudioSource, Recording

        key = safe_name(example.id)
        manifest = Recording(
            id=key,
            sources=[AudioSource("shar", [0], "")],
            sampling_rate=sample_rate,
            num_samples=len(samples),
            duration=len(samples) / sample_rate,
            channel_ids=[0],
        )
        place = self._add_data(f"{key}.flac", encode_audio(samples, sample_rate), key, manifest.to_dict())
        self._add_cut(example, key, place, recording=manifest)

    def add_texts(self, example: Example) -> None:
        """An example of texts alone."""
        self._write_line({"id": example.id, **example.texts})

    def finish(self) -> list[dict[str, Any]]:
        """Completes the files; returns what `check_file` wants to know of each."""
        with naming(self._paths[-1]):
            self._close()
        return [_complete(path) for path in self._paths]

    def discard(self) -> None:
        """Takes away what was begun."""
        with contextlib.suppress(OSError):  # the disk may be full
            self._close()
        for path in self._paths:
            unfinished_path(path).unlink(missing_ok=True)

    def _close(self) -> None:
        with contextlib.ExitStack() as closing:  # all of them, whatever becomes of one
            for file in (self._tar, self._file, self._lines):
                if file is not None:
                    closing.callback(file.close)

    def _add_data(self, name: str, data: bytes, key: str, manifest: dict[str, Any]) -> Place:
        """As Shar wants it: the data, and behind them what they are."""
        assert self._tar is not None
        description = json.dumps(manifest).encode() + b"\n"
        ends = []
        for member, content in ((name, data), (f"{key}.json", description)):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            with naming(self._paths[1]):
                self._tar.addfile(info, io.BytesIO(content))
            ends.append(self._tar.offset)
        padded = -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return Place(ends[0] - padded, len(data))

    def _add_cut(self, example: Example, key: str, place: Place, **data: Any) -> None:
        from lhotse import MonoCut, SupervisionSegment

        texts = dict(example.texts)
        supervision = SupervisionSegment(
            example.id,
            key,
            0,
            example.duration_s,
            text=texts.pop("transcript"),
            speaker=example.speaker,
            custom=texts or None,
        )
        custom = {"num_frames": example.num_frames, "word_times": example.word_times, **place._asdict()}
        cut = MonoCut(
            key, 0, example.duration_s, channel=0, supervisions=[supervision], custom=custom, **data
        )
        self._write_line(cut.to_dict())

    def _write_line(self, content: dict[str, Any]) -> None:
        with naming(self._paths[0]):
            self._lines.write(json.dumps(content, ensure_ascii=False).encode() + b"\n")


def encode_audio(samples: np.ndarray, sample_rate: int) -> bytes:
    """FLAC, the same bytes for the same samples. What is beyond full scale is clipped."""
    import soundfile

    stream = io.BytesIO()
    soundfile.write(stream, np.clip(samples, -1, 1), sample_rate, format="FLAC", subtype="PCM_16")
    return stream.getvalue()


def safe_name(id: str) -> str:
    """The id, if it can be a file's name inside a tar archive; or else one that stands for it."""
    plain = id == Path(id).name and not id.startswith(".") and len(id.encode()) <= 200
    if plain:
        return id
    return quote(id, safe="").replace(".", "%2E")[:200] + "-" + hashlib.sha256(id.encode()).hexdigest()[:12]


def _complete(path: Path) -> dict[str, Any]:
    unfinished = unfinished_path(path)
    with naming(path), unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    return {
        "name": path.name,
        "bytes": path.stat().st_size,
        "head": _head(path),
        "sha256": file_digest(path),
    }


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()


def check_file(folder: Path, known: dict[str, Any], *, thorough: bool = False) -> str | None:
    """What is wrong with a file of a shard: it is missing, of another size, or begins with something else.

    `thorough` reads all of it.
    """
    path = folder / str(known["name"])
    if path.name != known["name"] or not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != known["bytes"]:
        return f"{path} is truncated or foreign: it has {size} bytes, {known['bytes']} were written"
    if _head(path) != known["head"] or (thorough and file_digest(path) != known["sha256"]):
        return f"{path} is damaged or foreign: its content is not what was written"
    return None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The examples of a shard as plain data: lhotse reads them too, but its import takes a second."""
    with gzip.open(path, "rb") as lines:
        for line in lines:
            yield json.loads(line)


def example_of(line: dict[str, Any]) -> Example:
    """An example as `ShardWriter` wrote it."""
    if "supervisions" not in line:
        texts = {name: text for name, text in line.items() if name != "id"}
        return Example(line["id"], texts, 0, 0.0)
    custom, (supervision,) = line["custom"], line["supervisions"]
    times = custom.get("word_times")
    return Example(
        supervision["id"],
        {"transcript": supervision["text"], **supervision.get("custom", {})},
        custom["num_frames"],
        line["duration"],
        supervision.get("speaker"),
        None if times is None else tuple(WordTime(*time) for time in times),
    )


def place_of(line: dict[str, Any]) -> Place:
    """Where the data are, as `ShardWriter` wrote it."""
    return Place(int(line["custom"]["offset"]), int(line["custom"]["size"]))


def read_data(file: BinaryIO, place: Place) -> bytes:
    """An example's data from its tar file. Processes that share an open file do not get in each other's way:
    no position is moved."""
    data = os.pread(file.fileno(), place.size, place.offset)
    if len(data) != place.size:
        raise ValueError(f"{file.name} ends at byte {place.offset + len(data)}: it is truncated")
    return data


def read_array(data: bytes) -> np.ndarray:
    """Stored features (T, F) as float32."""
    start = 10 + int.from_bytes(data[8:10], "little")
    head = _NPY_HEAD.match(data[10:start])  # numpy's own parser takes longer than reading the data
    if data[:8] != b"\x93NUMPY\x01\x00" or head is None:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False).astype(np.float32)
    values = np.frombuffer(data, np.float16, offset=start)
    return values.reshape(int(head[1]), int(head[2])).astype(np.float32)
