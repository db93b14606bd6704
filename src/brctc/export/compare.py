"""What exported graphs compute, beside the model that they were made of."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from brctc.data import Padded, pad
from brctc.data.subsampling import WINDOW
from brctc.evaluate import one_thread
from brctc.models import Model, System, Transducer
from brctc.models.exported import ExportedSystem
from brctc.models.exported_encoder import Output

BAR = 1e-4
"""Nats: the largest difference of a log-probability."""
ALONE = (1, 2, 6, 7, 8, 10, 11, 57, 333, 1000, 3000)
TOGETHER = (3, 7, 120, 400, 57)
LABELS = (0, 5, 40)
HYPOTHESES = 3


class Found(NamedTuple):
    """Of one batch."""

    lengths: list[int]
    """Of the source."""
    difference: float
    """The largest of all log-probabilities; infinite if a number of frames is another one."""
    agreement: float
    """The share of frames with the same best class."""


def batches(system: System) -> list[list[int]]:
    """Lengths to compare with: short ones, long ones, several at once. A token may be several frames."""
    rate = system.config.encoder.up_sampling_factor
    alone = [[max(1, length // rate)] for length in ALONE]
    return [*alone, [max(1, length // rate) for length in TOGETHER]]


def sources(system: System, lengths: Sequence[int], seed: int = 0) -> Padded:
    """Random tokens; or features as large as those of the corpus, which change about as slowly as speech."""
    generator = torch.Generator().manual_seed(seed)
    if system.config.encoder.input == "tokens":
        size = system.input_size
        return pad([torch.randint(1, size, (length,), generator=generator) for length in lengths])
    mean, std = 0.0, 1.0
    if system.config.normalisation == "global":
        mean, std = system.normalisation.mean, system.normalisation.std
    found = []
    for length in lengths:
        noise = torch.randn(length + 4, system.input_size, generator=generator)
        found.append(mean + std * noise.unfold(0, 5, 1).mean(-1) * 5**0.5)
    return pad(found)


@torch.inference_mode()
def compare_encoder(
    model: Model, exported: ExportedSystem, outputs: Sequence[Output], lengths: Sequence[int]
) -> Found:
    """All CTC outputs and numbers of frames of a batch, and the decoders behind them."""
    system, source = model.system, sources(model.system, lengths)
    least = WINDOW if system.config.encoder.subsampling > 1 else 1
    found = exported.encode(source)
    heard = [n for n, length in enumerate(lengths) if length >= least]
    frames = {output.tap: found.taps[output.tap].lengths for output in outputs}
    worst, same, total = 0.0, 0, 0
    if any(bool(counts[n]) for counts in frames.values() for n in range(len(lengths)) if n not in heard):
        worst = math.inf  # what is too short has no frames
    if not heard:
        return Found([*lengths], worst, 1.0)
    expected = system.encode(Padded(source.values[heard], source.lengths[heard]), model.trim)
    for output in outputs:
        if not torch.equal(frames[output.tap][heard], expected.taps[output.tap].lengths):
            worst = math.inf
        if output.text is not None:
            theirs = found.logits(output.tap, output.text).values[heard]
            ours, counts = expected.logits(output.tap, output.text)
            for n, count in enumerate(counts.tolist()):
                a, b = theirs[n, :count], ours[n, :count].log_softmax(-1)[: len(theirs[n])]
                worst = max(worst, _difference(a[: len(b)], b[: len(a)]))
                same += int((a[: len(b)].argmax(-1) == b[: len(a)].argmax(-1)).sum())
                total += count
        if output.decoder is not None:
            memories = found.memory(output.decoder), expected.memory(output.decoder)
            memory = Padded(memories[0].values[heard], memories[0].lengths[heard])
            decoders = exported.decoders[output.decoder], system.decoders[output.decoder]
            worst = max(worst, _compare_decoders(decoders, (memory, memories[1])))
    return Found([*lengths], worst, same / total if total else 1.0)


def _difference(a: Tensor, b: Tensor) -> float:
    if not a.numel():
        return 0.0
    found = float((a - b).abs().max())
    return found if math.isfinite(found) else math.inf


def _compare_decoders(decoders: tuple[Any, Any], memories: tuple[Padded, Padded]) -> float:
    transducer = isinstance(decoders[1], Transducer)
    classes = decoders[1].classes if transducer else decoders[1].end
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    frames = memories[1].values.shape[1]  # attention says no more tokens than these
    for count in LABELS if transducer else {min(count, frames) for count in LABELS}:
        labels = torch.randint(1, classes, (len(memories[0].lengths), count), generator=generator)
        score = _joint if transducer else _next_tokens
        theirs, ours = (score(*both, labels) for both in zip(decoders, memories, strict=True))
        worst = max(worst, _difference(theirs, ours))
    return worst


def _joint(transducer: Any, memory: Padded, labels: Tensor) -> Tensor:
    """The log-probabilities at some frames, behind all labels."""
    frames = transducer.project(memory.values[:, :1])
    return transducer.joint_projected(frames, transducer.predictions(labels)[:, -1:])


def _next_tokens(decoder: Any, memory: Padded, labels: Tensor) -> Tensor:
    """The log-probabilities of the tokens behind all labels, of some hypotheses that are reordered."""
    prepared = decoder.start(*memory)
    tokens = torch.full((len(labels), 1), decoder.end)
    log_probs, cache = decoder.step(prepared, tokens, None)
    for step, label in enumerate(labels.unbind(1)):
        rows = torch.arange(HYPOTHESES).expand(len(labels), -1)
        tokens = (label[:, None] + rows) % decoder.end
        cache = cache.reorder(rows.flip(1) if step else torch.zeros_like(rows))
        log_probs, cache = decoder.step(prepared, tokens, cache)
    return log_probs


def time_together(systems: Sequence[System], frames: int = 300, seconds: float = 1.0) -> list[float]:
    """Milliseconds of a call of each on one thread, taking turns: a step of a stream, or an utterance. What
    others do on the machine does not count."""
    with one_thread(), torch.inference_mode():
        calls = [_call(system, frames) for system in systems]
        taken: list[list[float]] = [[] for _ in calls]
        end = time.process_time() + seconds
        while len(taken[0]) < 4 or time.process_time() < end:
            for call, times in zip(calls, taken, strict=True):
                start = time.process_time()
                call()
                times.append(time.process_time() - start)
    return [1000 * sorted(times[1:])[len(times[1:]) // 2] for times in taken]


def _call(system: System, frames: int) -> Callable[[], object]:
    if not system.config.streaming:
        size = max(1, frames // system.config.encoder.up_sampling_factor)
        shape = (1, size) if system.config.encoder.input == "tokens" else (1, size, system.input_size)
        values = torch.ones(shape, dtype=torch.long) if len(shape) == 2 else torch.zeros(shape)
        source = Padded(values, torch.tensor([size]))
        return lambda: system.encode(source)
    window: Any = system.encoder.window_frames
    state, features = system.initial_state(1), torch.zeros(1, window, system.input_size)
    return lambda: system.step(features, torch.tensor([window]), state)
