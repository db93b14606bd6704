"""Frames in phases: every P-th frame of a sequence first, then the next ones of those, and so on.

The first phase is the whole sequence at a P-th of its rate. An early finish then says there what it can, and
in the phases behind what does not fit: it need not carry words through time, which small models hardly learn.
"""

import torch

from brctc.data.batch import Padded


def phase_order(length: int, phases: int) -> list[int]:
    """The frames of a sequence in phases: 0, P, 2 P, ..., 1, P + 1, ..."""
    return [frame for phase in range(phases) for frame in range(phase, length, phases)]


def in_phases(sequence: Padded, phases: int) -> Padded:
    """Each (N, T, D) sequence in the order of its phases; padding stays behind it."""
    if phases == 1:
        return sequence
    values, lengths = sequence
    frame = torch.arange(values.shape[1], device=values.device)
    rank = frame % phases * len(frame) + frame // phases
    padding = frame >= lengths.to(values.device)[:, None]
    order = torch.where(padding, len(frame) * phases + frame, rank).argsort(1)
    return Padded(values.gather(1, order[:, :, None].expand(values.shape)), lengths)
