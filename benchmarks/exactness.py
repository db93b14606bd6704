"""How exact is the float32 gradient? Prints the table of docs/math.md.

Normwise error of the gradient with respect to the logits against the same in float64, for kinds of
posterior that break other implementations, beside torch's own float32 CTC.

    python benchmarks/exactness.py             # all lengths, about three minutes
    python benchmarks/exactness.py --frames 200
"""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

import brctc

FACTORS = (0.0, 10.0, 100.0)
FRAMES = (50, 200, 1000, 4000)
BARS = {"last": 1e-5, "each": 5e-5}
KINDS = ("flat", "random", "peaky", "mismatched", "blank-dominated", "extreme")


def make_logits(kind: str, T: int, U: int, C: int, targets: Tensor, seed: int = 0) -> Tensor:
    """(T, 1, C) float32 logits; "peaky" ones follow an even alignment, "mismatched" ones a wrong text."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(T, 1, C, generator=generator)
    if kind == "flat":
        return 0.01 * noise
    if kind == "random":
        return 3 * noise
    if kind == "extreme":
        return 3000 * noise
    if kind == "blank-dominated":
        noise[:, :, 0] += 30
        return noise
    spikes = torch.zeros(T, 1, C)
    spikes[:, 0, 0] = 15
    labels = targets if kind == "peaky" else torch.randint(1, C, (U,), generator=generator)
    at = (torch.arange(U) + 0.5) * T / U
    spikes[at.long(), 0, 0] = 0
    spikes[at.long(), 0, labels] = 15
    return spikes + noise


def gradient(logits: Tensor, targets: Tensor, risk: brctc.BayesRisk | None, from_logits: bool) -> Tensor:
    leaf = logits.clone().requires_grad_()
    scores = leaf if from_logits else leaf.log_softmax(-1)
    loss = brctc.bayes_risk_ctc_loss(
        scores, targets[None], [len(logits)], [len(targets)], risk, reduction="sum", from_logits=from_logits
    )
    return torch.autograd.grad(loss, leaf)[0].double()


def torch_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    lengths = torch.tensor([len(logits)]), torch.tensor([len(targets)])
    loss = F.ctc_loss(leaf.log_softmax(-1), targets[None], *lengths, reduction="sum")
    return torch.autograd.grad(loss, leaf)[0].double()


def error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def measure(kind: str, T: int) -> dict[str, float]:
    """The worst error over all risk factors of "last" and "each", and torch's.

    Our gradient is taken fused from the logits: a float32 log_softmax in front would add its own
    rounding to ours.
    """
    U, C = max(2, T // 10), 50
    targets = torch.randint(1, C, (U,), generator=torch.Generator().manual_seed(1))
    logits = make_logits(kind, T, U, C, targets)
    exact = logits.double()
    result = {"last": 0.0, "each": 0.0}
    for factor in FACTORS:
        for name, risk in (("last", brctc.EarlyFinish(factor)), ("each", brctc.EarlyEmission(factor))):
            found = gradient(logits, targets, risk, True)
            result[name] = max(result[name], error(found, gradient(exact, targets, risk, True)))
    expected = gradient(exact, targets, None, True)
    result["torch"] = error(torch_gradient(logits, targets), expected)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, nargs="*", default=FRAMES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| posterior | T | last | each | torch's CTC |")
    print("|---|---|---|---|---|")
    met = True
    for kind in KINDS:
        for T in arguments.frames:
            errors = measure(kind, T)
            met &= all(errors[name] <= bar for name, bar in BARS.items())
            print(f"| {kind} | {T} | {errors['last']:.1e} | {errors['each']:.1e} | {errors['torch']:.1e} |")
    print(f"\nbars {BARS}: {'met' if met else 'MISSED'}")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
