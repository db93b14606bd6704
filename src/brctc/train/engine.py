"""One process or many under torchrun: torch's DistributedDataParallel, and what it leaves to others.

A batch is cut into parts whatever the number of processes, and each part's gradient is weighed by its
share of the batch. DDP sums gradients over processes while the backward pass goes on. It is told to look for
unused parameters: then its buckets never change, and a resumed run is bit-identical.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from brctc.train.peers import Peers

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""What processes wait for one another in a step. Corpora are prepared outside of it."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train together."""

    rank: int
    count: int
    device: torch.device
    peers: Peers | None = None

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

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier()

    def wait_for_first(self, what: str) -> None:
        """Until the first process is here too, however long that takes: it may prepare a corpus for hours."""
        if self.peers is not None:
            self.peers.pass_gate(what)

    def at_step(self, step: int) -> None:
        """Lets the others know how far this process is."""
        if self.peers is not None:
            self.peers.step = step


class Parallel:
    """A module whose gradients are summed over processes."""

    def __init__(self, module: nn.Module, processes: Processes) -> None:
        self.module, self._count = module, processes.count
        self._wrapped: Any = module
        if processes.count > 1:
            self._wrapped = DistributedDataParallel(
                module, find_unused_parameters=True, broadcast_buffers=False, gradient_as_bucket_view=True
            )

    def __call__(self, *arguments: Any) -> Any:
        return self._wrapped(*arguments)

    def backward(self, loss: Tensor, share: float) -> None:
        """Adds the gradient of a part that is this share of the batch of all processes."""
        (share * self._count * loss).backward()  # DDP divides by the number of processes

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        """The context of a part: gradients travel with the last one of a step."""
        return nullcontext() if last or self._count == 1 else self._wrapped.no_sync()


def attempt() -> int:
    """How often torchrun has started the processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


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
    store, rank, count = next(rendezvous("env://"))
    # a restarted process must not find the addresses of the attempt before
    store = PrefixStore(f"attempt-{attempt()}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=COLLECTIVE_TIMEOUT)
    try:
        with Peers(store, rank, count) as peers, peers.named_on_failure():
            yield Processes(rank, count, device, peers)
    finally:
        dist.destroy_process_group()
