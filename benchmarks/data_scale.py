"""Does the data layer carry large corpora, and how fast does it read and prepare small ones?

    python benchmarks/data_scale.py                     # all parts, about ten minutes on two idle cores
    python benchmarks/data_scale.py --part scale        # one of scale, loading, preparing
    python benchmarks/data_scale.py --json result.json  # the figures, for a machine
    python benchmarks/data_scale.py --quick             # small sizes: shows that it runs, says little

scale: 14 million utterances at three speeds, simulated: one shard of 100,000 examples that is named 140
times; each rank of 32 is a process of its own. loading: one loader, audio to features at three speeds.
preparing: a manifest of noise, one job against two, and killed at random moments.
"""

import argparse
import gzip
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bars import MEBIBYTE, Check, finish, memory_bytes

from brctc.data import FeatureConfig, Prepared, RowSource, Storage, TokenConfig, Tokenizer, prepare_split
from brctc.data.batch import Example
from brctc.data.loading import BatchLoader
from brctc.data.manifest import Row, write_manifest
from brctc.data.sampling import BatchConfig, BatchStream, Position
from brctc.data.shards import ShardWriter

SPEEDS = (0.9, 1.0, 1.1)
RANKS = 32
CLIPS = 50
BATCH = BatchConfig(seconds=400)


def noise(seconds: float, seed: int) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(round(16000 * seconds))).astype(np.float32)


# ---- scale ------------------------------------------------------------------------------------


def write_large(folder: Path, rows: int, times: int) -> None:
    """A split whose one shard is named many times. Its rows share a few recordings."""
    storage = Storage.of_audio(FeatureConfig(), "audio", SPEEDS)
    shards = folder / "train-large"
    shards.mkdir(parents=True)
    writer = ShardWriter(shards, 0, storage)
    for i in range(CLIPS):
        frames = 100 + 25 * i
        example = Example(f"clip-{i}", {"transcript": "this is what was said"}, frames, frames / 100)
        writer.add_audio(example, noise(frames / 100, i), 16000)
    files = writer.finish()
    path = shards / files[0]["name"]
    with gzip.open(path, "rb") as lines:
        clips = [json.loads(line) for line in lines]
    with gzip.open(path, "wt", compresslevel=6, encoding="utf-8") as lines:
        for i in range(rows):
            cut = clips[i % CLIPS] | {"id": f"utterance-{i:08d}"}
            cut["supervisions"] = [cut["supervisions"][0] | {"id": cut["id"]}]
            lines.write(json.dumps(cut) + "\n")
    content = path.read_bytes()
    head, whole = hashlib.sha256(content[:4096]), hashlib.sha256(content)
    files[0] |= {"bytes": len(content), "head": head.hexdigest(), "sha256": whole.hexdigest()}
    mean_s = sum(100 + 25 * i for i in range(CLIPS)) / CLIPS / 100
    description = {
        "format": 2, "key": "0" * 64, "folder": "train-large", "source": "", "origin": None,
        "storage": {"kind": "audio", "features": FeatureConfig().model_dump(), "feature_dim": 80,
                    "frame_shift_s": 0.01, "speeds": SPEEDS},
        "examples": rows * times, "num_frames": 0, "duration_s": rows * times * mean_s, "words": 0,
        "speakers": 0, "resampled": [], "longest": ["clip-49", (100 + 25 * 49) / 100], "statistics": None,
        "skipped": [], "shards": [{"examples": rows, "files": files, "fingerprint": ""}] * times,
    }  # fmt: skip
    (folder / "train.json").write_text(json.dumps(description))


def rank_main(folder: str, rank: str) -> None:
    """What one process of a large training does before its first step; prints seconds and memory."""
    started = time.time() - float(os.environ["BRCTC_STARTED"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    clock = time.perf_counter()
    prepared = Prepared(folder, "train")
    tokenizer = Tokenizer.train(["this is what was said"], TokenConfig())
    stream = BatchStream(prepared, BATCH, seed=0).after(Position())
    loader = BatchLoader(prepared, {"transcript": tokenizer})
    batch = loader.load_parts(next(stream), [int(rank)], RANKS)
    first_s = started + time.perf_counter() - clock
    for _ in range(20):
        loader.load_parts(next(stream), [int(rank)], RANKS)
    print(json.dumps({"first_s": first_s, "bytes": memory_bytes("VmHWM"), "utterances": len(batch)}))


def measure_scale(quick: bool) -> tuple[list[Check], dict]:
    rows, times, ranks = (2000, 20, (0,)) if quick else (100_000, 140, (0, 13, 31))
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        for label, count in (("large", times), ("small", 1)):
            folder = Path(name) / label
            write_large(folder, rows, count)
            for rank in ranks:
                environment = {**os.environ, "BRCTC_STARTED": str(time.time()), "OMP_NUM_THREADS": "1"}
                command = [sys.executable, __file__, "--rank", str(folder), str(rank)]
                found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                figures[f"{label}, rank {rank}"] = json.loads(found.stdout)
                shown = figures[f"{label}, rank {rank}"]
                print(
                    f"{rows * count:>12,} utterances x {len(SPEEDS)} speeds, rank {rank:>2} of {RANKS}: "
                    f"first batch after {shown['first_s']:.1f} s, {shown['bytes'] / MEBIBYTE:.0f} MiB"
                )
    large = [found for label, found in figures.items() if label.startswith("large")]
    small = [found for label, found in figures.items() if label.startswith("small")]
    growth = max(f["bytes"] for f in large) / max(f["bytes"] for f in small)
    checks = [
        Check("first batch, s", max(found["first_s"] for found in large), 60, at_most=True),
        Check("memory of a process, GB", max(found["bytes"] for found in large) / 1e9, 1.0, at_most=True),
        Check("memory against 100,000 utterances", growth, 1.2, at_most=True),
    ]
    return checks, figures


# ---- loading ----------------------------------------------------------------------------------


def measure_loading(quick: bool) -> tuple[list[Check], dict]:
    """Seconds of audio that one loader makes features of, at three speeds, in a second of its CPU time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_large(folder, 500 if quick else 5000, 1)
        prepared = Prepared(folder, "train")
        tokenizer = Tokenizer.train(["this is what was said"], TokenConfig())
        loader = BatchLoader(prepared, {"transcript": tokenizer})
        stream = BatchStream(prepared, BATCH, seed=0).after(Position())
        loader.load_parts(next(stream), [0], 1)  # warm
        audio_s = 0.0
        clock = time.process_time()
        for _ in range(3 if quick else 30):
            planned = next(stream)
            loader.load_parts(planned, [0], 1)
            audio_s += sum(cut.duration for cut in planned.cuts)
        rate = audio_s / (time.process_time() - clock)
    print(f"one loader: {rate:.0f} s of audio per second of CPU time, features and speeds on the fly")
    return [Check("audio per CPU second of a loader, s", rate, 80, at_most=False)], {"rate": rate}


# ---- preparing --------------------------------------------------------------------------------


def write_noise(folder: Path, files: int) -> Path:
    import soundfile

    rows = []
    for i in range(files):
        samples = noise(4 + i % 7, i)
        soundfile.write(folder / f"{i}.flac", samples, 16000)
        rows.append(Row(f"u{i}", "what was said", folder / f"{i}.flac", len(samples) / 16000))
    write_manifest(folder / "train.tsv", rows)
    return folder / "train.tsv"


def prepare(manifest: Path, out: Path, jobs: int) -> None:
    storage = Storage.of_audio(FeatureConfig(), "features", SPEEDS)
    prepare_split(RowSource(manifest), out, "train", storage, jobs=jobs)


def measure_preparing(quick: bool) -> tuple[list[Check], dict]:
    rounds, files = (1, 120) if quick else (3, 1500)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = write_noise(folder, files)
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(rounds):
            for jobs, measured in seconds.items():
                shutil.rmtree(folder / "out", ignore_errors=True)
                clock = time.perf_counter()
                prepare(manifest, folder / "out", jobs)
                measured.append(time.perf_counter() - clock)
        expected = content_of(folder / "out")
        kills = kill_and_resume(manifest, folder / "killed", statistics.median(seconds[1]))
        same = content_of(folder / "killed") == expected
    ratio = statistics.median(seconds[1]) / statistics.median(seconds[2])
    print(f"prepared {files} recordings: {seconds}; {kills} kills, the same bytes: {same}")
    checks = [
        Check("two jobs against one", ratio, 1.7, at_most=False),
        Check("kills", kills, 5, at_most=False),
        Check("same bytes after them", float(same), 1, at_most=False),
    ]
    return checks, {"seconds": seconds, "kills": kills}


def content_of(folder: Path) -> dict[str, str]:
    """Every file that a training reads, by a hash of its bytes."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def kill_and_resume(manifest: Path, out: Path, whole_s: float) -> int:
    kills = 0
    while True:
        child = subprocess.Popen([sys.executable, __file__, "--prepare", str(manifest), str(out)])
        try:
            child.wait(random.uniform(2.0, 0.15 * whole_s + 2.5) if kills < 5 else None)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
        if child.wait() == 0:
            return kills
        kills += 1


PARTS = {"scale": measure_scale, "loading": measure_loading, "preparing": measure_preparing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="measure this alone")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", metavar="FILE", help="gets the figures")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank_main(*options.rank)
    if options.prepare:
        return prepare(Path(options.prepare[0]), Path(options.prepare[1]), 1)
    checks: list[Check] = []
    figures = {}
    for name, measure in PARTS.items():
        if options.part in (None, name):
            found, figures[name] = measure(options.quick)
            checks += found
    finish(checks, figures, options.json)


if __name__ == "__main__":
    main()
