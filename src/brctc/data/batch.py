"""What a model learns from: named sequences, padded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from brctc.data.manifest import WordTime

SOURCE = "source"
"""The name of a text that is translated; of speech, it is `transcript`."""


@dataclass(frozen=True)
class Example:
    """What is known of an example besides its source; times count from its start."""

    id: str
    texts: Mapping[str, str]
    """By name: `transcript` of speech, `source` of text, and `translation`."""
    num_frames: int
    """Of the source's features; 0 for text."""
    duration_s: float
    speaker: str | None = None
    word_times: tuple[WordTime, ...] | None = None
    """Of the transcript."""


def source_length(example: Example) -> int:
    """Frames of an example, or characters of its text: what batches are sorted by."""
    return example.num_frames or len(example.texts.get(SOURCE, ""))


class Padded(NamedTuple):
    """N sequences of different lengths in one tensor."""

    values: Tensor
    """(N, T, ...); behind `lengths`, padding."""
    lengths: Tensor
    """(N)"""

    def to(self, device: torch.device | str) -> "Padded":
        """The same on a device."""
        return Padded(self.values.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True))

    def pin_memory(self) -> "Padded":
        """In memory that a GPU copies from while it computes."""
        return Padded(self.values.pin_memory(), self.lengths.pin_memory())


def pad(sequences: Sequence[Tensor]) -> Padded:
    """Sequences (T, ...) as one batch, filled with zeros."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return Padded(torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True), lengths)


@dataclass(frozen=True)
class Batch:
    """Examples of one step, or a part of them."""

    ids: list[str]
    source: Padded
    """Features (N, T, F) float32, or tokens (N, T) of a text."""
    texts: dict[str, list[str]]
    """As they are written, by name."""
    targets: dict[str, Padded]
    """The same as tokens (N, U), filled with class 0, the blank."""
    copies: int = 1
    """How often each example is there: the first copy of all, then the second."""

    def __len__(self) -> int:
        return len(self.ids)

    def repeated(self, source: Padded, copies: int) -> "Batch":
        """So many copies of all examples, with a source for each."""
        if copies == 1:
            return replace(self, source=source)
        texts = {name: given * copies for name, given in self.texts.items()}
        targets = {
            name: Padded(target.values.repeat(copies, 1), target.lengths.repeat(copies))
            for name, target in self.targets.items()
        }
        return Batch(self.ids * copies, source, texts, targets, copies)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch with its tensors on a device."""
        targets = {name: target.to(device) for name, target in self.targets.items()}
        return replace(self, source=self.source.to(device), targets=targets)

    def pin_memory(self) -> "Batch":
        """For torch's DataLoader."""
        targets = {name: target.pin_memory() for name, target in self.targets.items()}
        return replace(self, source=self.source.pin_memory(), targets=targets)
