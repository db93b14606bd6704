"""Real-time factors, measured so that two systems can be compared on a machine that is not quiet."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple, TypeVar

import torch

T = TypeVar("T")


class RealTime(NamedTuple):
    """One system's row: seconds of computation over all utterances, and per second of audio."""

    name: str
    audio_s: float
    encoder_s: float
    decoder_s: float
    encoder_rtf: float
    decoder_rtf: float
    rtf: float
    ratio: float
    """This rtf over the first system's."""


def measure_rtf(
    systems: Mapping[str, Callable[[T], tuple[float, float]]],
    utterances: Sequence[T],
    durations_s: Sequence[float],
    repeats: int = 5,
) -> list[RealTime]:
    """The real-time factor of each system, encoder and decoder apart.

    A system takes one utterance and returns (encoder_s, decoder_s), taken with time.perf_counter
    around its two parts. All systems do an utterance before any does the next, and take turns in
    going first, so whatever else the machine does is shared; every utterance is done once to warm
    up; what counts is each utterance's median over the repeats. One thread.
    """
    if not systems:
        raise ValueError("no systems to measure")
    if len(utterances) != len(durations_s):
        raise ValueError(f"{len(utterances)} utterances and {len(durations_s)} durations")
    audio_s = float(sum(durations_s))
    if audio_s <= 0:
        raise ValueError(f"the utterances last {audio_s} s in all: there is no factor")
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}, expected at least 1")
    names = list(systems)
    seconds = {name: [0.0, 0.0] for name in names}
    with one_thread():
        for index, utterance in enumerate(utterances):
            samples: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
            for repeat in range(repeats + 1):
                first = (index + repeat) % len(names)
                for name in names[first:] + names[:first]:
                    samples[name].append(systems[name](utterance))
            for name, runs in samples.items():
                for part in (0, 1):
                    seconds[name][part] += median(run[part] for run in runs[1:])
    baseline = sum(seconds[names[0]])
    return [
        RealTime(
            name,
            audio_s,
            encoder_s,
            decoder_s,
            encoder_s / audio_s,
            decoder_s / audio_s,
            (encoder_s + decoder_s) / audio_s,
            (encoder_s + decoder_s) / baseline if baseline else float("nan"),
        )
        for name, (encoder_s, decoder_s) in seconds.items()
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """What is in the block is computed by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
