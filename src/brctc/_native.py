"""Stands in for the compiled core where that was not built: it checks what it is given, and computes nothing.

Python takes the compiled `_native` if it is there. What is said here of labels and lengths is said there too,
in native/ctc_input.h and native/transducer_bindings.cpp.
"""

import ctypes
from typing import Any, NoReturn

PROBLEM = "the native core was not built: install a wheel, or build with a C++20 compiler"


def _integers(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if count else []


def _check_labels(n: int, labels: list[int], classes: int, blank: int) -> None:
    for u, label in enumerate(labels):
        if label < 0 or label >= classes or label == blank:
            expected = "the blank" if label == blank else f"expected 0 to {classes - 1}"
            raise ValueError(f"label {u} of utterance {n} is {label}, {expected}")


class Input:
    """A batch of the CTC criteria: checked, and no more."""

    def __init__(
        self,
        *,
        T: int,
        N: int,
        C: int,
        labels: int,
        label_count: int,
        label_stride: int,
        input_lengths: int,
        target_lengths: int,
        blank: int,
        **_: Any,
    ) -> None:
        padded = label_stride >= 0
        longest = label_stride if padded else label_count
        frames, counts = _integers(input_lengths, N), _integers(target_lengths, N)
        for n, (frame, count) in enumerate(zip(frames, counts, strict=True)):
            if not 0 <= frame <= T:
                raise ValueError(f"input_lengths[{n}] is {frame}, expected 0 to {T}, the frames of log_probs")
            if not 0 <= count <= longest:
                what = "the width of targets" if padded else "the number of targets"
                raise ValueError(f"target_lengths[{n}] is {count}, expected 0 to {longest}, {what}")
        if not padded and sum(counts) != label_count:
            asked = f"{sum(counts)}{' or more' if sum(counts) > label_count else ''}"
            raise ValueError(
                f"target_lengths ask for {asked} concatenated targets, but there are {label_count}"
            )
        values, start = _integers(labels, label_count), 0
        for n, count in enumerate(counts):
            start = n * label_stride if padded else start
            _check_labels(n, values[start : start + count], C, blank)
            start += count

    @staticmethod
    def of(*_: Any) -> None:
        return None


class Transducer:
    """A batch of the transducer loss: checked, and no more."""

    def __init__(
        self,
        _is_double: bool,
        N: int,
        T: int,
        U: int,
        C: int,
        targets: int,
        logit_lengths: int,
        target_lengths: int,
        blank: int,
        _threads: int,
    ) -> None:
        frames, counts = _integers(logit_lengths, N), _integers(target_lengths, N)
        for n, (frame, count) in enumerate(zip(frames, counts, strict=True)):
            if not 1 <= frame <= T:
                raise ValueError(f"logit_lengths[{n}] is {frame}, expected 1 to {T}, the frames there are")
            if not 0 <= count <= U:
                raise ValueError(f"target_lengths[{n}] is {count}, expected 0 to {U}, the width of targets")
            _check_labels(n, _integers(targets, N * U)[n * U : n * U + count], C, blank)


def learn_tensors(*_: Any) -> bool:
    return False


def are_plain(*_: Any) -> bool:
    return False


def is_one(_: Any) -> bool:
    return False


def first_scores(scores: Any) -> float:
    """Of float tensors on the CPU, as the core does; it costs some microseconds here."""
    plain = scores.is_cpu and scores.dim() == 3 and scores.numel() > 0
    return float(scores.detach()[0, 0, :1024].max()) if plain else 0.0


def peaks(*_: Any) -> bool:
    return False


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise RuntimeError(f"{name} needs the native core: {PROBLEM}")
