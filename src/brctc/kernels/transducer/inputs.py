"""What a transducer loss is given, brought into one shape and checked. All backends start from here.

Axes: N utterances, T frames, U labels of a target, C classes, D channels of the joint network.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from brctc import _native
from brctc.kernels.operators import outside_graphs
from brctc.kernels.tensors import (
    Lengths,
    check_blank,
    check_floating,
    check_has_values,
    integer_lengths,
    integers,
    local_tensor,
)

NUMBERS_PER_CELL = 4  # what the native core keeps of a row of logits: native/transducer.h


class Labels(NamedTuple):
    """The target side of a batch."""

    targets: Tensor  # (N, U) int64, padded
    logit_lengths: Tensor  # (N) int64: frames
    target_lengths: Tensor  # (N) int64
    blank: int


def prepare_labels(
    targets: Tensor, logit_lengths: Lengths, target_lengths: Lengths, blank: int, shape: tuple[int, ...]
) -> Labels:
    """Labels for logits of this shape, (N, T, U + 1, C). A negative blank counts from the end."""
    check_blank(blank)
    if -shape[3] <= blank < 0:
        blank += shape[3]
    labels = Labels(
        integers("targets", targets),
        integer_lengths("logit_lengths", logit_lengths),
        integer_lengths("target_lengths", target_lengths),
        blank,
    )
    check_labels(labels, shape)
    return labels


def check_labels(labels: Labels, shape: tuple[int, ...]) -> None:
    """Raises for shapes that do not fit together. Needs no values, so it also holds in a trace."""
    batch, frames, rows, classes = shape
    if batch == 0 or frames == 0 or rows == 0 or classes == 0:
        raise ValueError(f"logits of shape {tuple(shape)} are empty: (N, T, U + 1, C) all need 1")
    if not 0 <= labels.blank < classes:
        raise ValueError(f"blank is {labels.blank}, expected 0 to {classes - 1}: there are {classes} classes")
    for name, values in labels._asdict().items():
        if isinstance(values, Tensor) and values.dtype != torch.int64:
            raise TypeError(f"{name} must be int64 here, got {values.dtype}")
    if tuple(labels.targets.shape) != (batch, rows - 1):
        raise ValueError(
            f"targets have shape {tuple(labels.targets.shape)}, expected (N, U) = ({batch}, {rows - 1}): "
            f"logits {tuple(shape)} are (N, T, U + 1, C)"
        )
    for name in ("logit_lengths", "target_lengths"):
        lengths = getattr(labels, name)
        if lengths.dim() != 1 or lengths.shape[0] != batch:
            raise ValueError(f"{name} has {lengths.numel()} values for {batch} utterances")


@outside_graphs
def native_transducer(labels: Labels, shape: tuple[int, ...], dtype: torch.dtype) -> _native.Transducer:
    """The batch as the native core takes it. Raises for lengths and labels out of range, naming the
    utterance and the value."""
    batch, frames, rows, classes = shape
    for name in ("targets", "logit_lengths", "target_lengths"):
        check_has_values(name, getattr(labels, name))
    targets, logit_lengths, target_lengths = (local_tensor(values) for values in labels[:3])
    return _native.Transducer(
        dtype == torch.float64,
        batch,
        frames,
        rows - 1,
        classes,
        targets.data_ptr(),
        logit_lengths.data_ptr(),
        target_lengths.data_ptr(),
        int(labels.blank),
        torch.get_num_threads(),
    )


class Joint(NamedTuple):
    """A joint network: logits = tanh(encoder + prediction) @ weight.T + bias, all of one dtype."""

    encoder: Tensor  # (N, T, D)
    prediction: Tensor  # (N, U + 1, D)
    weight: Tensor  # (C, D)
    bias: Tensor  # (C)

    def logits_shape(self) -> tuple[int, int, int, int]:
        batch, frames, _ = self.encoder.shape
        return batch, frames, self.prediction.shape[1], self.weight.shape[0]


def prepare_joint(encoder: Tensor, prediction: Tensor, weight: Tensor, bias: Tensor) -> Joint:
    """The joint network in float32, or in float64 if a part of it is."""
    joint = Joint(encoder, prediction, weight, bias)
    check_joint(joint)
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in joint) else torch.float32
    return Joint(*(tensor.to(dtype) for tensor in joint))


def check_joint(joint: Joint) -> None:
    """Raises for tensors that do not make a joint network."""
    shapes = {"encoder": "(N, T, D)", "prediction": "(N, U + 1, D)", "weight": "(C, D)", "bias": "(C)"}
    for (name, tensor), shape in zip(joint._asdict().items(), shapes.values(), strict=True):
        check_floating(name, tensor)
        if tensor.dim() != len(shape.split(",")):
            raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")
        if tensor.device != joint.encoder.device:
            raise ValueError(f"{name} is on {tensor.device}, the encoder's output on {joint.encoder.device}")
    batch, frames, rows, classes = joint.logits_shape()
    width = joint.encoder.shape[2]
    sizes = ((batch, frames, width), (batch, rows, width), (classes, width), (classes,))
    for (name, tensor), shape, size in zip(joint._asdict().items(), shapes.values(), sizes, strict=True):
        if tuple(tensor.shape) != size:
            found = f"{name} has shape {tuple(tensor.shape)}, expected {shape} = {size}"
            raise ValueError(f"{found}: the encoder's output is {tuple(joint.encoder.shape)}")
