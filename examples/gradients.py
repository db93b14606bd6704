"""Where each criterion pulls an untrained model: its gradient on a uniform posterior.

Every class has the same probability in every frame, as at the start of a training. The negative
gradient with respect to log_probs is the occupancy: how much of the weighed paths stands on each
token in each frame. EarlyFinish weighs the last token alone: it moves most, and the others make room
in proportion. EarlyEmission weighs every token, so that each is pulled to the left on its own.

    python examples/gradients.py --output gradients.png
"""

import argparse
import math

import matplotlib as mpl
import torch
from torch import Tensor

import brctc

mpl.use("Agg")  # no window: the picture goes to a file
import matplotlib.pyplot as plt

T, U, C = 100, 5, 6
CRITERIA = {
    "plain CTC": None,
    "EarlyFinish(10)": brctc.EarlyFinish(10.0),
    "EarlyEmission(20)": brctc.EarlyEmission(20.0),
}


def occupancy(risk: brctc.BayesRisk | None) -> Tensor:
    """(T, C): minus the gradient of the loss."""
    log_probs = torch.full((T, C), -math.log(C), requires_grad=True)
    targets = torch.arange(1, U + 1)  # every token once, so that its class is its own
    loss = brctc.bayes_risk_ctc_loss(log_probs, targets, T, U, risk, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, log_probs)
    return -gradient


def mean_frames(table: Tensor) -> Tensor:
    """(U): the mean frame of each token's gradient, counted from 1."""
    frame = torch.arange(1, T + 1, dtype=table.dtype)
    tokens = table[:, 1:]
    return frame @ tokens / tokens.sum(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", default="gradients.png", help="where the picture goes")
    arguments = parser.parse_args()

    tables = {name: occupancy(risk) for name, risk in CRITERIA.items()}
    print("mean frame of" + "".join(f"   token {u}" for u in range(1, U + 1)))
    for name, table in tables.items():
        print(f"{name:<17}" + "".join(f"{mean:8.1f}  " for mean in mean_frames(table).tolist()))

    plt.rcParams.update({"font.size": 10, "axes.titlesize": 11, "axes.spines.top": False})
    figure, panels = plt.subplots(1, len(tables), figsize=(8.2, 2.9), sharey=True, layout="constrained")
    colours = plt.get_cmap("viridis")(torch.linspace(0.0, 0.85, U).numpy())
    frame = torch.arange(1, T + 1)
    blank = []
    for panel, (name, table) in zip(panels, tables.items(), strict=True):
        for u in range(1, U + 1):
            panel.plot(frame, tables["plain CTC"][:, u], color=colours[u - 1], linewidth=0.8, alpha=0.35)
            panel.plot(frame, table[:, u], color=colours[u - 1], linewidth=1.8, label=f"token {u}")
        of_blank = panel.twinx()  # the blank has a scale of its own: it would dwarf the tokens
        of_blank.spines["top"].set_visible(False)
        blank = of_blank.plot(frame, table[:, 0], "--", color="grey", linewidth=1.2, label="blank")
        of_blank.set_ylim(0, 1.05)
        of_blank.tick_params(colors="grey", labelright=panel is panels[-1])
        if panel is panels[-1]:
            of_blank.set_ylabel("blank", color="grey")
        panel.set_title(name)
        panel.set_xlabel("frame")
        panel.set_xlim(1, T)
    panels[0].set_ylim(0)
    panels[0].set_ylabel("minus gradient, tokens")
    lines = [*panels[0].get_legend_handles_labels()[0], *blank]
    figure.legend(handles=lines, loc="outside lower center", ncols=U + 1, frameon=False)
    figure.savefig(arguments.output, dpi=110)
    print(f"picture in {arguments.output}")


if __name__ == "__main__":
    main()
