"""How many live streams does one core keep up with, and does a long stream stay as cheap as a short one?

The CPU-size model of recipes/digit-strings/online.yaml, untrained: what it says makes no difference to what
it costs. One thread, CPU time. Features are made of the audio, too.

    python benchmarks/streaming.py                     # streams of 30 minutes, about two minutes
    python benchmarks/streaming.py --json result.json  # the figures, for a machine
    python benchmarks/streaming.py --quick             # streams of 3 minutes; fast, less exact
"""

import argparse
import gc
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from bars import MEBIBYTE, Check, finish, memory_bytes

import brctc
from brctc.data import TokenConfig, Tokenizer
from brctc.decode import StreamingRecognizer, push_together
from brctc.models import EmformerConfig, Model, System
from brctc.train import load_recipe

RECIPE = Path(__file__).parent.parent / "recipes" / "digit-strings" / "online.yaml"
STREAMS = (1, 5, 10, 20, 30, 40, 60, 80, 120)
TICK_S = 0.04  # a server takes what has come in, so often
MINUTE_S = 60.0


def make_model() -> Model:
    recipe = load_recipe(RECIPE)
    digits = "zero one two three four five six seven eight nine"
    tokenizer = Tokenizer.train([digits], TokenConfig(kind="word"))
    assert recipe.features is not None
    torch.manual_seed(0)
    system = System(recipe.model, recipe.features.num_bins, {"transcript": tokenizer.size})
    return Model(system.eval(), {"transcript": tokenizer}, recipe.features, None, {})


def make_audio(seconds: float, rate: int) -> np.ndarray:
    """Noise that is loud and quiet."""
    generator = np.random.default_rng(0)
    levels = np.repeat(generator.choice([0.01, 0.1, 0.5], int(seconds * 4) + 1), rate // 4)
    count = int(seconds * rate)
    return (generator.standard_normal(count) * 0.1 * levels[:count]).astype(np.float32)


class Load(NamedTuple):
    streams: int
    cpu_per_s: float
    """CPU seconds that a second of all streams takes: below 1, one core keeps up."""
    slowest_ms: float
    """Of all ticks, the 99th percentile: what is said waits for at most that, not counting the audio."""


def measure_load(model: Model, streams: int, seconds: float) -> Load:
    """Streams that began at different times: every tick, some of them have a chunk, computed together."""
    recognizers = [StreamingRecognizer(model) for _ in range(streams)]
    rate = recognizers[0].sample_rate
    tick = int(TICK_S * rate)
    audio = make_audio(seconds + 2, rate)
    encoder = model.system.config.encoder
    assert isinstance(encoder, EmformerConfig)
    for n, recognizer in enumerate(recognizers):  # a second, and then a part of a chunk
        recognizer.push(audio[: rate + n % encoder.chunk_frames * tick])
    took = []
    for first in range(0, int(seconds * rate), tick):
        part = audio[first : first + tick]
        start = time.thread_time()
        push_together([(recognizer, part) for recognizer in recognizers])
        took.append(time.thread_time() - start)
    return Load(streams, sum(took) / (len(took) * TICK_S), 1000 * float(np.percentile(took, 99)))


class LongStream(NamedTuple):
    minutes: int
    second_ms: float
    """CPU time of a chunk in the second minute, the median."""
    last_ms: float
    growth_mb: float | None
    """Of the process's memory, from the second minute to the last."""


def measure_long_stream(model: Model, minutes: int) -> LongStream:
    """One stream to its last minute. That and the second minute of another one are then measured in turns,
    so that a noisy machine disturbs both alike."""
    rate = StreamingRecognizer(model).sample_rate
    minute = make_audio(MINUTE_S, rate)
    chunk = chunk_samples(model)

    def parts() -> list[np.ndarray]:
        return [minute[first : first + chunk] for first in range(0, len(minute), chunk)]

    long = StreamingRecognizer(model)
    before = 0
    for number in range(minutes - 1):
        for part in parts():
            long.push(part)
        if number == 1:
            before = resident_bytes()
        print(".", end="", flush=True, file=sys.stderr)
    gc.collect()
    growth = (resident_bytes() - before) / MEBIBYTE if before else None
    short = StreamingRecognizer(model)
    for part in parts():
        short.push(part)
    times: dict[StreamingRecognizer, list[float]] = {short: [], long: []}
    gc.disable()
    for part in parts():
        for recognizer, found in times.items():
            start = time.thread_time()
            recognizer.push(part)
            found.append(time.thread_time() - start)
    gc.enable()
    second, last = (1000 * statistics.median(found) for found in times.values())
    return LongStream(minutes, second, last, growth)


def chunk_samples(model: Model) -> int:
    encoder, features = model.system.config.encoder, model.features
    assert isinstance(encoder, EmformerConfig)
    assert features is not None
    return encoder.chunk_frames * encoder.subsampling * features.shift_samples


def resident_bytes() -> int:
    """0 where the system does not say."""
    try:
        return memory_bytes("VmRSS")
    except FileNotFoundError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter streams, and no more than 40 at once")
    parser.add_argument("--minutes", type=int, help="of the long stream, at least 2")
    parser.add_argument("--streams", type=int, help="no more than so many at once")
    parser.add_argument("--json", metavar="FILE", help="write all figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model()
    seconds, minutes, most = (2.0, 3, 40) if arguments.quick else (10.0, 30, max(STREAMS))
    minutes, most = arguments.minutes or minutes, arguments.streams or most
    measure_load(model, 5, 1.0)  # the first steps of a process take longer

    loads = []
    for streams in STREAMS:
        if (loads and loads[-1].cpu_per_s > 1) or streams > most:
            break
        loads.append(measure_load(model, streams, seconds))
        print(".", end="", flush=True, file=sys.stderr)
    long = measure_long_stream(model, minutes)

    kept_up = max((load.streams for load in loads if load.cpu_per_s <= 1), default=0)
    checks = [
        Check("streams that one core keeps up with", kept_up, 20, False),
        Check("last minute of a stream, times the second", long.last_ms / long.second_ms, 1.05, True),
    ]
    if long.growth_mb is not None:
        checks.append(Check("MB that a stream grows after its second minute", long.growth_mb, 2, True))

    print(f"\n\n{'streams':>8}{'CPU s per s of audio':>24}{'ms, 99% of ticks':>20}")
    for load in loads:
        print(f"{load.streams:>8}{load.cpu_per_s:>24.3f}{load.slowest_ms:>20.1f}")
    print(f"\na stream of {long.minutes} minutes, CPU time of a chunk: ", end="")
    print(f"{long.second_ms:.2f} ms in the second minute, {long.last_ms:.2f} ms in the last")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"\n{machine}, torch {torch.__version__}, brctc {brctc.__version__}\n")
    figures = {"machine": machine, "loads": [load._asdict() for load in loads], "long_stream": long._asdict()}
    finish(checks, figures, arguments.json)


if __name__ == "__main__":
    main()
