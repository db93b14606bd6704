"""Two processes have the gradient of one: a step of torch's DDP beside one over the whole batch."""

import multiprocessing
import tempfile
import warnings
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

from brctc.check.findings import Check, Outcome
from brctc.check.kernels import relative_error
from brctc.data.batch import Batch, Padded
from brctc.models import ConformerConfig, HeadConfig, System, SystemConfig
from brctc.train import Objective
from brctc.train.engine import Parallel, Processes
from brctc.train.losses import CTCConfig
from brctc.train.objective import TOTAL
from brctc.train.risks import EarlyFinishConfig

GROUP = "two processes"
TOLERANCE = 1e-4
"""Of the gradient's norm, relative, in float32: sums are made in another order."""
EXAMPLES, FRAMES, BINS, CLASSES, LABELS = 6, 80, 20, 30, 8
PATIENCE_S = 180.0


def parallel_checks() -> Iterator[Check]:
    """On two GPUs if there are two, and always on the CPU."""
    if torch.cuda.device_count() >= 2:
        yield Check(GROUP, "two GPUs (NCCL) and one", partial(_compare, "cuda"))
    yield Check(GROUP, "two processes on the CPU (gloo) and one", partial(_compare, "cpu"))


def _compare(device: str) -> Outcome:
    expected = gradients(0, 1, torch.device(device, 0) if device == "cuda" else torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=_one_of_two, args=(device, rank, folder)) for rank in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(PATIENCE_S)
        late = [child for child in children if child.is_alive()]
        for child in late:
            child.kill()
            child.join()
        if late or any(child.exitcode for child in children):
            codes = ", ".join(str(child.exitcode) for child in children)
            raise RuntimeError(f"the processes have ended with {codes}" + (": they hung" if late else ""))
        found = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]
    errors = [_error(one, expected) for one in found]
    figures = {"gradient_error": max(errors), "tolerance": TOLERANCE}
    good = max(errors) <= TOLERANCE
    return Outcome(f"gradient off by {max(errors):.1e}", figures, good)


def gradients(rank: int, count: int, device: torch.device) -> list[Tensor]:
    """Of the process's part of the batch, summed over processes; the same system in all of them."""
    torch.manual_seed(0)
    encoder = ConformerConfig(
        dim=32, heads=2, feed_forward_dim=64, first_layers=1, second_layers=1, kernel_size=5, dropout=0.0
    )
    system = System(
        SystemConfig(encoder=encoder, heads={"transcript": HeadConfig()}), BINS, {"transcript": CLASSES}
    )
    losses = {
        "middle": CTCConfig(on="middle", weight=0.5, risk=EarlyFinishConfig(factor=5.0)),
        "final": CTCConfig(weight=0.5),
    }
    batch = _batch()
    part = Batch(
        batch.ids[rank::count],
        Padded(*(tensor[rank::count] for tensor in batch.source)),
        {},
        {text: Padded(*(tensor[rank::count] for tensor in target)) for text, target in batch.targets.items()},
    ).to(device)
    objective = Objective(system, losses).to(device)
    parallel = Parallel(objective, Processes(rank, count, device))
    parallel.backward(parallel(part, 0)[TOTAL], len(part) / len(batch))
    return [parameter.grad.cpu() for parameter in objective.parameters() if parameter.grad is not None]


def _batch() -> Batch:
    """Utterances of different lengths."""
    lengths = torch.linspace(FRAMES, FRAMES - 20, EXAMPLES).long()
    labels = torch.linspace(LABELS, 2, EXAMPLES).long()
    source = Padded(torch.randn(EXAMPLES, FRAMES, BINS), lengths)
    targets = {"transcript": Padded(torch.randint(1, CLASSES, (EXAMPLES, LABELS)), labels)}
    return Batch([f"{i}" for i in range(EXAMPLES)], source, {}, targets)


def _one_of_two(device: str, rank: int, folder: str) -> None:
    """In a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # DDP's, of speed
    where = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(where)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    try:
        torch.save(gradients(rank, 2, where), Path(folder) / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _error(found: list[Tensor], expected: list[Tensor]) -> float:
    ours, theirs = (torch.cat([tensor.flatten().double() for tensor in given]) for given in (found, expected))
    return relative_error(ours, theirs)
