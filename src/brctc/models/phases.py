"""Frames in phases: every P-th frame of a sequence first, then those behind them, from the end to the
beginning, then the next ones from the beginning again, and so on.

The first phase is the whole sequence at a P-th of its rate. An early finish then says there what it can, and
in the phases behind what does not fit: it need not carry words through time, which small models hardly learn.
Every second phase runs backwards, so that the last words, which are the ones that do not fit, are near.
What trimming leaves goes back into the order of the source: a rate of frames that the model chose.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from brctc.data.batch import Padded
from brctc.models.base import EncoderConfig
from brctc.models.layers import frame_mask

FAR = 1 << 40
"""Behind any frame. A number, since ONNX has none that depends on the length."""


class PhasedEncoderConfig(EncoderConfig):
    """An encoder whose frames can be in phases where it is trimmed."""

    phases: Annotated[int, Field(ge=1, le=100)] = 1
    """Above 1: where the encoder is trimmed, every so many-th frame comes first, then those between; behind
    it, frames are in order again (docs/translation.md)."""

    def middle_order(self, frames: int) -> list[int]:
        return phase_order(frames, self.phases)


def phase_order(length: int, phases: int) -> list[int]:
    """The frames of a sequence in phases: 0, P, 2 P, ..., P + 1, 1, 2, P + 2, ..."""
    found = [list(range(phase, length, phases)) for phase in range(phases)]
    return [frame for phase, frames in enumerate(found) for frame in frames[:: -1 if phase % 2 else 1]]


class InPhases:
    """The order of a batch in phases, and the way back."""

    def __init__(self, sequence: Padded, phases: int) -> None:
        """Of (N, T, D) sequences, as they are before."""
        self.order: Tensor | None = None
        """(N, T): the frame at each place; padding stays behind. None: they stay in order."""
        if phases > 1:
            total = sequence.values.shape[1]
            frame = torch.arange(total, device=sequence.values.device)
            phase, place = frame % phases, frame // phases
            rank = phase * FAR + torch.where(phase % 2 == 1, FAR - 1 - place, place)
            self.order = torch.where(_padding(sequence), phases * FAR + frame, rank).argsort(1)

    def apart(self, sequence: Padded) -> Padded:
        """Each sequence in the order of its phases."""
        return sequence if self.order is None else _take(sequence, self.order)

    def joined(self, kept: Padded) -> Padded:
        """What is left of the sequences in phases, the beginning of each, in the order of the source."""
        if self.order is None:
            return kept
        # an exported trim may leave a frame of padding behind all that there were
        frame = F.pad(self.order, (0, 1), value=FAR)[:, : kept.values.shape[1]]
        return _take(kept, (frame + FAR * _padding(kept)).argsort(1))


def _padding(sequence: Padded) -> Tensor:
    """(N, T): what is behind a sequence's end."""
    return ~frame_mask(sequence.lengths, sequence.values.shape[1], sequence.values.device)


def _take(sequence: Padded, order: Tensor) -> Padded:
    values = sequence.values
    return Padded(values.gather(1, order[:, :, None].expand(values.shape)), sequence.lengths)
