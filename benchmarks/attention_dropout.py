"""What does it cost on a CPU to drop attention weights in training?

There torch's fused attention has no dropout. Compared are the attention of 4 heads of 64 features, without
dropout, with ours, and with torch's own way out; and a Conformer layer around the first two. Forward and
backward, one thread, CPU time, the medians of rounds in which all take turns.

    python benchmarks/attention_dropout.py
    python benchmarks/attention_dropout.py --json result.json  # the figures, for a machine
    python benchmarks/attention_dropout.py --quick             # one round; says little
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from bars import write_figures
from torch import Tensor

from brctc.models.conformer import Conformer
from brctc.models.layers import DotProductAttention

HEADS, DIM, FEED_FORWARD, KERNEL, DROPOUT = 4, 256, 1024, 31, 0.1
BATCHES = ((16, 25), (16, 100), (4, 400), (2, 1000))


def attention_of(attend: Callable[..., Tensor], size: int, frames: int) -> Callable[[], Tensor]:
    """Attention with scores of distances, as a relative Conformer adds them."""
    shape = (size, HEADS, frames, DIM // HEADS)
    query, key, value = (torch.randn(shape, requires_grad=True) for _ in range(3))
    bias = torch.randn(size, HEADS, frames, frames, requires_grad=True)
    return lambda: attend(query, key, value, bias)


def layer_with(dropout: float, size: int, frames: int) -> Callable[[], Tensor]:
    layer = Conformer(1, DIM, HEADS, FEED_FORWARD, KERNEL, DROPOUT, dropout, relative=True)
    x, lengths = torch.randn(size, frames, DIM), torch.full((size,), frames)
    return lambda: layer(x, lengths)


def measure(calls: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """Milliseconds of each, forward and backward."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            call().sum().backward()
            took[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(found[1:]) for name, found in took.items()}  # the first one warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", metavar="FILE", help="gets the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = []
    print("N x T      attention, ms: none, ours, torch's    layer, ms: none, ours")
    for size, frames in BATCHES:
        ways = {
            "none": DotProductAttention(),
            "ours": DotProductAttention(DROPOUT),
            "torch": lambda *parts: F.scaled_dot_product_attention(*parts, dropout_p=DROPOUT),
        }
        calls = {f"attention, {name}": attention_of(way, size, frames) for name, way in ways.items()}
        calls["layer, none"] = layer_with(0.0, size, frames)
        calls["layer, ours"] = layer_with(DROPOUT, size, frames)
        took = measure(calls, 1 if options.quick else options.rounds)
        alone, ours, torchs, layer, layer_ours = took.values()
        shares = f"({ours / alone - 1:+.0%}) {torchs:6.1f} ({torchs / alone - 1:+.0%})"
        around = f"{layer:6.1f} {layer_ours:6.1f} ({layer_ours / layer - 1:+.0%})"
        print(f"{size:2} x {frames:4}  {alone:6.1f} {ours:6.1f} {shares}    {around}", flush=True)
        figures.append({"size": size, "frames": frames, **took})
    write_figures(figures, options.json)


if __name__ == "__main__":
    main()
