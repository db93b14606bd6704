"""One process or many under torchrun: every process computes some parts of each batch.

A batch is cut into parts whatever the number of processes, each part's gradient is weighed by its share
of the batch, and one sum over all processes makes the gradient of the whole. The sum has one layout
always (the buckets of torch's DDP change after their first use), so a resumed run is bit-identical.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch import distributed as dist


@dataclass(frozen=True)
class Processes:
    """This process among those that train together."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over all processes."""
        if self.count == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replaces every gradient by its sum over all processes; one that is missing counts as zero."""
        if self.count == 1:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter)

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Makes all processes' tensors those of the first."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def processes() -> Iterator[Processes]:
    """The processes that torchrun has started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if count == 1:
        yield Processes(0, 1, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # the others wait while the first prepares a corpus, which takes hours; torch's default is minutes
    timeout = timedelta(days=1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    try:
        yield Processes(dist.get_rank(), count, device)
    finally:
        dist.destroy_process_group()
