"""How many live streams does a server keep up with, and does it stay well among bad clients?

A server of the CPU-size model of recipes/digit-strings/online.yaml, untrained, in a process of its own on the
loopback address. Streams play noise in real time, in blocks of 40 ms. A token is in time if it is here within
chunk + look-ahead + 150 ms of the moment when the audio under its spike was sent. Beside them come clients
that drop their connection at a random moment, and such that send NaN, stall, or never read. What the first
streams say is compared with what they say without a server.

    python benchmarks/serving.py                                # 80 streams for five minutes, 1,000 drops
    python benchmarks/serving.py --quick                        # 8 streams for 10 seconds, 20 drops
    python benchmarks/serving.py --streams 40 --seconds 60 --drops 100 --json result.json
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from bars import MEBIBYTE, Check, finish
from streaming import make_audio, make_model
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import brctc
from brctc.decode import EndpointRules, OnlineRecognizer
from brctc.models import EmformerConfig, Model, save_model

BLOCK_S, SLACK_S = 0.04, 0.150
GONE = (ConnectionClosed, InvalidStatus, OSError, TimeoutError)


@dataclass
class Heard:
    """What one client got."""

    latencies_s: list[float] = field(default_factory=list)
    segments: dict[int, str] = field(default_factory=dict)
    ended: bool = False
    problem: str = ""


async def play(url: str, samples: np.ndarray, rate: int, begin_s: float) -> Heard:
    """A client in real time."""
    heard, sent_at = Heard(), []
    await asyncio.sleep(begin_s)
    try:
        async with connect(url, ping_interval=None, open_timeout=60) as websocket:
            sending = asyncio.create_task(_send(websocket, samples, rate, sent_at))
            known: set[tuple[int, int]] = set()
            async for message in websocket:
                if message == "Done!":
                    heard.ended = True
                    break
                _take(json.loads(message), time.monotonic(), sent_at, known, heard)
            await sending
    except GONE as error:
        heard.problem = str(error) or type(error).__name__
    return heard


async def _send(websocket, samples: np.ndarray, rate: int, sent_at: list[float]) -> None:  # noqa: ANN001
    block, start = round(BLOCK_S * rate), time.monotonic()
    for number, first in enumerate(range(0, len(samples), block), start=1):
        await asyncio.sleep(max(0.0, start + number * BLOCK_S - time.monotonic()))
        await websocket.send(samples[first : first + block].astype("<f4").tobytes())
        sent_at.append(time.monotonic())
    await websocket.send("Done")


def _take(result: dict, now: float, sent_at: list[float], known: set[tuple[int, int]], heard: Heard) -> None:
    for place, time_s in enumerate(result["timestamps"]):
        if (result["segment"], place) not in known:
            known.add((result["segment"], place))
            block = min(int((result["start_time"] + time_s) / BLOCK_S - 1e-6), len(sent_at) - 1)
            heard.latencies_s.append(now - sent_at[block])
    if result["is_final"]:
        heard.segments[result["segment"]] = result["text"]


async def drop(url: str, samples: np.ndarray, rng: np.random.Generator, until: float) -> None:
    """A client that is gone at a random moment."""
    await asyncio.sleep(float(rng.uniform(0, max(0.0, until - time.monotonic()))))
    with contextlib.suppress(*GONE):
        websocket = await connect(url, ping_interval=None)
        for first in range(0, int(rng.integers(0, 20)) * 640, 640):
            await websocket.send(samples[first : first + 640].astype("<f4").tobytes())
        websocket.transport.abort()


async def misbehave(url: str, samples: np.ndarray, kind: str, until: float) -> str:
    """A client that sends NaN, or nothing, or never reads; and how it was closed."""
    audio = np.full(640, np.nan, "<f4") if kind == "nan" else samples.astype("<f4")
    try:
        async with connect(url, ping_interval=None, max_queue=1, close_timeout=1) as websocket:
            if kind == "deaf":
                websocket.transport.pause_reading()
            while time.monotonic() < until and websocket.close_code is None:
                if kind == "stall":
                    await asyncio.sleep(0.5)
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(websocket.send(audio[: 1 << 17].tobytes()), 1)
                await asyncio.sleep(0.5)
            return f"{kind}: {websocket.close_code} {websocket.close_reason or ''}"
    except GONE as error:
        return f"{kind}: {error}"


def resident(pid: int) -> float:
    """Megabytes of a process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / MEBIBYTE
    return 0.0


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


async def watch(pid: int, found: list[tuple[float, float]]) -> None:
    start = time.monotonic()
    while True:
        found.append((time.monotonic() - start, resident(pid)))
        await asyncio.sleep(1.0)


def start_server(folder: Path, most: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "brctc", "serve", str(folder / "online"), "--port", "0"]
    command += ["--max-streams", str(most), "--idle-seconds", "5"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r" on http://([\d.:]+)", line):
            return process, f"ws://{found[1]}/"
    raise RuntimeError("the server did not start")


async def measure(
    url: str, pid: int, audio: np.ndarray, rate: int, arguments: argparse.Namespace
) -> tuple[list[Heard], list[str], list[tuple[float, float]]]:
    rng = np.random.default_rng(0)
    memory: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch(pid, memory))
    until = time.monotonic() + arguments.seconds
    streams = [
        play(url, audio[n * rate // 4 :][: round(arguments.seconds * rate)], rate, n * BLOCK_S / 3)
        for n in range(arguments.streams)
    ]
    kinds = [kind for kind in ("nan", "stall", "deaf") for _ in range(arguments.bad)]
    others = [misbehave(url, audio, kind, until) for kind in kinds]
    drops = [drop(url, audio, rng, until) for _ in range(arguments.drops)]
    heard, bad, _ = await asyncio.gather(
        asyncio.gather(*streams), asyncio.gather(*others), asyncio.gather(*drops)
    )
    watching.cancel()
    return heard, bad, memory


def texts_differ(model: Model, heard: list[Heard], audio: np.ndarray, rate: int, seconds: float) -> int:
    """How many of the first streams say something else than without a server."""
    online, different = OnlineRecognizer(model, EndpointRules()), 0
    for n, found in enumerate(heard):
        stream = online.create_stream()
        stream.push(audio[n * rate // 4 :][: round(seconds * rate)])
        stream.flush()
        wanted = {segment.number: segment.text for segment in stream.pop_segments()}
        different += wanted != found.segments
    return different


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="8 streams for 10 seconds, 20 drops")
    parser.add_argument("--streams", type=int, help="at once, in real time (default: 80)")
    parser.add_argument("--seconds", type=float, help="how long they play (default: 300)")
    parser.add_argument("--drops", type=int, help="connections that are dropped (default: 1000)")
    parser.add_argument("--bad", type=int, default=2, help="clients of each bad kind")
    parser.add_argument("--json", metavar="FILE", help="write all figures here")
    arguments = parser.parse_args()
    for name, few, many in (("streams", 8, 80), ("seconds", 10.0, 300.0), ("drops", 20, 1000)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, few if arguments.quick else many)
    torch.set_num_threads(1)
    model = make_model()
    assert model.features is not None
    rate, encoder = model.features.sample_rate, model.system.config.encoder
    assert isinstance(encoder, EmformerConfig)
    frames = encoder.subsampling * (encoder.chunk_frames + encoder.right_context_frames)
    bound_s = frames * model.features.frame_shift_s + SLACK_S
    audio = make_audio(arguments.seconds + arguments.streams / 4 + 1, rate).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        save_model(Path(name) / "online", model.system, model.tokenizers, model.features)
        process, url = start_server(Path(name), 2 * arguments.streams + arguments.drops + 100)
        try:
            before = cpu_s(process.pid)
            heard, bad, memory = asyncio.run(measure(url, process.pid, audio, rate, arguments))
            cores = (cpu_s(process.pid) - before) / arguments.seconds
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    print(f"{arguments.streams} streams for {arguments.seconds:g} s, {arguments.drops} drops")
    print(f"CPU time of the server: {cores:.2f} s a second")
    different = texts_differ(model, heard[:4], audio, rate, arguments.seconds)
    report(arguments, heard, bad, memory, bound_s, code, different, cores)


def report(
    arguments: argparse.Namespace,
    heard: list[Heard],
    bad: list[str],
    memory: list[tuple[float, float]],
    bound_s: float,
    code: int,
    different: int,
    cores: float,
) -> None:
    latencies = np.array([latency for one in heard for latency in one.latencies_s] or [1e9])
    share = float((latencies <= bound_s).mean())
    settled = [mb for at, mb in memory if at > min(60.0, arguments.seconds / 2)] or [memory[-1][1]]
    print(f"tokens: {len(latencies)}, from their audio's arrival until they are here, ms:")
    points = {f"{q}%": float(np.quantile(latencies, q / 100)) for q in (50, 90, 95, 99)}
    print("  " + ", ".join(f"{name} {1000 * value:.0f}" for name, value in points.items()))
    print(f"  chunk + look-ahead + 150 ms is {1000 * bound_s:.0f}: {100 * share:.1f}% are in time")
    print(
        "memory of the server, MB: "
        + ", ".join(f"{at:.0f} s {mb:.0f}" for at, mb in memory[:: max(1, len(memory) // 8)])
    )
    print("bad clients: " + "; ".join(sorted(set(bad))))
    for problem in sorted({one.problem for one in heard if one.problem}):
        print(f"a stream ended with: {problem}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"\n{machine}, torch {torch.__version__}, brctc {brctc.__version__}\n")
    checks = [
        Check("% of tokens in time", 100 * share, 95, False),
        Check("streams that did not end well", sum(not one.ended for one in heard), 0, True),
        Check("texts that differ, of the first streams", different, 0, True),
        Check(
            "MB that the server grows after a minute, or half the time", settled[-1] - settled[0], 20, True
        ),
        Check("exit code after SIGTERM", code, 0, True),
    ]
    figures = {
        "machine": machine,
        "streams": arguments.streams,
        "seconds": arguments.seconds,
        "drops": arguments.drops,
        "cpu_s_per_s": cores,
        "tokens": len(latencies),
        "in_time": share,
        "latency_s": points,
        "memory_mb": memory,
        "bad": bad,
    }
    finish(checks, figures, arguments.json)


if __name__ == "__main__":
    main()
