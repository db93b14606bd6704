"""Path groups by hand: five paths, two groups, one risk of one's own.

The target is A B in three frames (the paper's appendix B). Its paths fall into groups by the frame
tau where B ends; a risk that gives 1.0 to tau = 2 and 0.8 to tau = 3 turns the likelihood 0.7 into
the objective 0.62.

    python examples/path_groups.py --output path_groups.png
"""

import argparse
import math
from itertools import groupby, product

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from torch import Tensor

import brctc

mpl.use("Agg")  # no window: the picture goes to a file
import matplotlib.pyplot as plt

CLASSES = "-AB"  # class 0 is the blank
TARGET = [1, 2]
# The last frame does not sum to one: no softmax gives the example's path probabilities. The loss
# takes its input as it is, so that does not matter here.
SCORES = torch.tensor([[1 / 3, 2 / 3, 0], [0, 2 / 3, 1 / 3], [1.35, 0, 0.45]], dtype=torch.double)
RISK = {2: 1.0, 3: 0.8}
COLOURS = {2: "#1b7837", 3: "#c2571a"}


class ByTable(brctc.BayesRisk):
    """Looks up the risk of each frame where the last token may end."""

    tokens = "last"

    def log_risk(self, groups: brctc.PathGroups) -> Tensor:
        # frames that the table does not name hold no path: any value will do for them
        values = [RISK.get(int(tau), 1.0) for tau in groups.frame]
        return torch.tensor(values, dtype=groups.log_share.dtype).log()


def all_paths() -> list[tuple[str, float, int]]:
    """(path, probability, frame where B ends) of every path of the target."""
    paths = []
    for classes in product(range(len(CLASSES)), repeat=len(SCORES)):
        if [c for c, _ in groupby(classes) if c] == TARGET:
            probability = math.prod(SCORES[t, c].item() for t, c in enumerate(classes))
            last = max(t for t, c in enumerate(classes, 1) if c == TARGET[-1])
            paths.append(("".join(CLASSES[c] for c in classes), probability, last))
    return sorted(paths, key=lambda path: (path[2], -path[1]))


def draw_paths(axes: Axes, paths: list[tuple[str, float, int]]) -> None:
    """The lattice of states - A - B -, and every path on it in the colour of its group."""
    states = ["-", "A", "-", "B", "-"]
    for i, (path, probability, tau) in enumerate(paths):
        heights, state = [], 0
        for symbol in path:  # the lowest state with this symbol that has not been passed
            state = next(s for s in range(state, len(states)) if states[s] == symbol)
            heights.append(len(states) - 1 - state)
        shift = 0.055 * (i - (len(paths) - 1) / 2)  # side by side where paths share a transition
        style = "-" if probability > 0 else ":"
        axes.plot(
            range(1, len(path) + 1),
            [height + shift for height in heights],
            style,
            color=COLOURS[tau],
            linewidth=1.2 + 14 * probability,
            alpha=0.75,
            solid_capstyle="round",
            label=f"{path}  {probability:.1f}",
        )
    for t, s in product(range(1, len(SCORES) + 1), range(len(states))):
        axes.plot(t, len(states) - 1 - s, "o", markersize=15, color="white", markeredgecolor="#555555")
        axes.text(t, len(states) - 1 - s, states[s], ha="center", va="center", fontsize=11)
    axes.set_xticks(range(1, len(SCORES) + 1))
    axes.set_yticks([])
    axes.set_xlim(0.7, 5.0)
    axes.set_ylim(-0.6, len(states) - 0.4)
    axes.set_xlabel("frame", x=0.31)
    axes.set_title("paths of A B, coloured by where B ends")
    font = {"family": "monospace", "size": 10}
    axes.legend(title="path, probability", loc="center right", frameon=False, handlelength=1.6, prop=font)


def draw_groups(axes: Axes, posterior: dict[int, float], objective: float) -> None:
    for tau, probability in posterior.items():
        axes.bar(tau, probability, width=0.7, color=COLOURS[tau], alpha=0.25)
        axes.bar(tau, probability * RISK[tau], width=0.7, color=COLOURS[tau], alpha=0.75)
        weighed = (
            f"risk {RISK[tau]:.1f}\n\n{RISK[tau]:.1f} x {probability:.1f}\n= {RISK[tau] * probability:.2f}"
        )
        axes.text(
            tau, probability * RISK[tau] / 2, weighed, ha="center", va="center", color="white", fontsize=11
        )
    axes.set_xticks(list(posterior), [f"B ends at {tau}" for tau in posterior])
    axes.set_xlim(1.5, 3.5)
    axes.set_ylim(0, 0.44)
    axes.set_ylabel("group posterior")
    axes.set_title(f"groups: {objective:.2f} of {sum(posterior.values()):.1f} is left")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", default="path_groups.png", help="where the picture goes")
    arguments = parser.parse_args()

    log_probs, targets = SCORES.log(), torch.tensor(TARGET)
    groups = brctc.path_groups(log_probs, targets, len(SCORES), len(TARGET))
    of_last_token = groups.log_posterior[0, -1].exp()  # of shape (T)
    posterior = {tau: of_last_token[tau - 1].item() for tau in RISK}

    def objective(risk: brctc.BayesRisk | None) -> float:
        loss = brctc.bayes_risk_ctc_loss(log_probs, targets, len(SCORES), len(TARGET), risk, reduction="none")
        return math.exp(-loss.item())

    paths = all_paths()
    print("path   probability   B ends at")
    for path, probability, tau in paths:
        print(f"{path:<4}   {probability:11.2f}   {tau:9}")
    print("\ngroup     posterior   risk   weighed")
    for tau, probability in posterior.items():
        print(f"tau = {tau}   {probability:9.2f}   {RISK[tau]:.1f}   {RISK[tau] * probability:8.2f}")
    weighed = objective(ByTable())
    print(f"\nplain CTC  {objective(None):.6f}\nwith risk  {weighed:.6f}")

    plt.rcParams.update({"font.size": 10, "axes.titlesize": 11, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8.2, 3.5), width_ratios=[1.45, 1], layout="constrained"
    )
    draw_paths(left, paths)
    left.spines["left"].set_visible(False)
    draw_groups(right, posterior, weighed)
    figure.savefig(arguments.output, dpi=110)
    print(f"picture in {arguments.output}")


if __name__ == "__main__":
    main()
