"""Data-parallel training needs nothing special: two ranks learn what one process learns."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import os, sys, torch, brctc
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5)).double()
model = torch.nn.parallel.DistributedDataParallel(model)
optimiser = torch.optim.Adam(model.parameters(), 1e-2)
features = torch.randn(20, 4, 6, dtype=torch.double)
targets = torch.randint(1, 5, (4, 3))
lengths = torch.tensor([[20, 18, 15, 9], [3, 2, 3, 1]])
mine = slice(rank * 4 // ranks, (rank + 1) * 4 // ranks)
risks = [None, brctc.EarlyFinish(3.0), brctc.EarlyEmission(3.0)]
for step in range(12):
    optimiser.zero_grad()
    loss = brctc.bayes_risk_ctc_loss(
        model(features[:, mine]), targets[mine], *lengths[:, mine], risks[step % 3], from_logits=True
    )
    loss.backward()
    optimiser.step()
if rank == 0:
    torch.save([p.detach() for p in model.parameters()], sys.argv[1])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_learn_what_one_process_learns(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    weights = []
    for ranks in (1, 2):
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        out = tmp_path / f"{ranks}.pt"
        root = Path(__file__).parent.parent
        subprocess.run([sys.executable, "-m", *command, str(script), str(out)], check=True, cwd=root)
        weights.append(torch.load(out))
    torch.manual_seed(0)
    untrained = torch.nn.Linear(6, 16).double().weight
    assert (weights[0][0] - untrained).abs().max() > 1e-2, "nothing was learnt"
    for one, two in zip(*weights, strict=True):
        assert (one - two).abs().max() <= 1e-6
