"""ctc_loss.py's table on a GPU: run it as `python benchmarks/ctc_loss.py --device cuda`.

Forward and backward through autograd, CUDA events, medians of interleaved samples; the memory that a call
adds at its peak; and whether the gradient is bit-identical over runs. torch's CTC is measured both ways:
its own kernels, and cuDNN's where that takes the shape.
"""

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import brctc

MEBIBYTE = 2**20
Call = Callable[[], Tensor]
Batch = tuple[Tensor, tuple[Tensor, Tensor, Tensor]]


def candidates(batch: Batch, risks: dict[str, brctc.BayesRisk | None]) -> dict[str, Call]:
    """Each runs a loss and returns its gradient."""
    logits, (targets, input_lengths, target_lengths) = batch
    logits = logits.cuda().requires_grad_()
    log_probs = logits.detach().log_softmax(-1).requires_grad_()
    rest = targets.cuda(), input_lengths.cuda(), target_lengths.cuda()
    # what cuDNN asks for: labels one after the other, all integers of 32 bits and on the CPU
    for_cudnn = targets.flatten().int(), input_lengths.int(), target_lengths.int()
    cudnn_takes_it = torch.ops.aten._use_cudnn_ctc_loss.Tensor(log_probs, *for_cudnn, 0)

    def torchs(scores: Tensor, cudnn: bool) -> Call:
        def run() -> Tensor:
            with torch.backends.cudnn.flags(enabled=cudnn):
                given = scores.log_softmax(-1) if scores is logits else scores
                loss = F.ctc_loss(given, *(for_cudnn if cudnn else rest))
                return torch.autograd.grad(loss, scores)[0]

        return run

    def ours(scores: Tensor, risk: brctc.BayesRisk | None) -> Call:
        fused = scores is logits

        def run() -> Tensor:
            loss = brctc.bayes_risk_ctc_loss(scores, *rest, risk, from_logits=fused, validate=False)
            return torch.autograd.grad(loss, scores)[0]

        return run

    calls: dict[str, Call] = {}
    for suffix, scores in (("", log_probs), (" fused", logits)):
        calls[f"torch{suffix}"] = torchs(scores, False)
        if cudnn_takes_it:
            calls[f"cuDNN{suffix}"] = torchs(scores, True)
        calls |= {f"{name}{suffix}": ours(scores, risk) for name, risk in risks.items()}
    return calls


def milliseconds(call: Call, number: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / number


def added_memory(call: Call) -> float:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - before) / MEBIBYTE


def is_deterministic(call: Call) -> bool:
    first = call()
    return all(torch.equal(first, call()) for _ in range(5))


def report(
    shapes: list, make_batch: Callable[..., Batch], risks: dict[str, brctc.BayesRisk | None], samples: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Prints the table and returns its figures."""
    if not torch.cuda.is_available():
        raise SystemExit(f"--device cuda: there is no CUDA device here (backends: {brctc.backends()})")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, brctc {brctc.__version__}\n")
    print(f"{'N,T,U,C':>16} {'candidate':>20} {'ms':>9} {'of torch':>9} {'MB':>9}  deterministic")
    figures = {}
    for shape in shapes:
        calls = candidates(make_batch(shape), risks)
        for call in calls.values():  # compiles kernels, starts allocators
            call()
        times = {name: [] for name in calls}
        for _ in range(samples):
            for name, call in calls.items():
                times[name].append(milliseconds(call, 20))
        figures[str(shape)] = rows = {}
        for name, call in calls.items():
            ms = statistics.median(times[name])
            peer = "torch fused" if "fused" in name else "torch"
            rows[name] = {
                "ms": ms,
                "times_torch": statistics.median(times[peer]) / ms,
                "MB": added_memory(call),
                "deterministic": float(is_deterministic(call)),
            }
            row = rows[name]
            same = "yes" if row["deterministic"] else "no"
            print(f"{shape!s:>16} {name:>20} {ms:9.3f} {row['times_torch']:8.1f}x {row['MB']:9.1f}  {same}")
    return figures
