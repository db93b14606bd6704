"""Without the compiled core: `import brctc` works, the reference runs, and that is said once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import brctc
from tests.test_layers import SOURCE

CODE = """
import warnings, torch, brctc
from brctc import _native
assert _native.__file__.endswith("_native.py"), _native.__file__
assert brctc.backends()["cpu"].startswith("the native core was not built"), brctc.backends()
torch.manual_seed(0)
logits = torch.randn(20, 2, 6, requires_grad=True)
rest = torch.tensor([[1, 2, 3], [4, 5, 5]]), [20, 18], [3, 3]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for risk in (None, brctc.EarlyFinish(3.0), brctc.EarlyEmission(3.0), brctc.DelayPenalty(0.1)):
        loss = brctc.bayes_risk_ctc_loss(logits, *rest, risk, from_logits=True)
        loss.backward()
        print(loss.item())
    brctc.transducer_loss(torch.randn(1, 4, 3, 5), torch.tensor([[1, 2]]), [4], [2])
assert len(said) == 1 and "the reference implementation runs" in str(said[0].message), said
assert logits.grad.abs().sum() > 0
for wrong, message in (
    (lambda: brctc.bayes_risk_ctc_loss(logits, torch.tensor([[1, 9], [1, 2]]), [20, 18], [2, 2]),
     "label 1 of utterance 0 is 9, expected 0 to 5"),
    (lambda: brctc.bayes_risk_ctc_loss(logits, torch.tensor([1, 2, 3]), [20, 18], [2, 2]),
     "target_lengths ask for 4 or more concatenated targets, but there are 3"),
    (lambda: brctc.bayes_risk_ctc_loss(logits, rest[0], [21, 18], [3, 3]),
     "input_lengths[0] is 21, expected 0 to 20, the frames of log_probs"),
    (lambda: brctc.transducer_loss(torch.randn(1, 4, 3, 5), torch.tensor([[1, 2]]), [5], [2]),
     "logit_lengths[0] is 5, expected 1 to 4, the frames there are"),
    (lambda: brctc.bayes_risk_ctc_loss(logits, *rest, backend="cpu"), "backend 'cpu' cannot run here"),
    (lambda: brctc.best_path(logits, *rest, from_logits=True), "best_path needs the native core"),
):
    try:
        wrong()
    except (ValueError, RuntimeError) as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package without its native module."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(SOURCE, folder / "brctc", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def test_the_reference_runs_and_says_so_once(copy):
    import torch

    packages = Path(torch.__file__).parent.parent
    # without site: an editable install would find the native module
    code = f"import sys; sys.path[:0] = [{str(copy)!r}, {str(packages)!r}]\n{CODE}"
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    torch.manual_seed(0)
    logits = torch.randn(20, 2, 6)
    rest = torch.tensor([[1, 2, 3], [4, 5, 5]]), [20, 18], [3, 3]
    risks = (None, brctc.EarlyFinish(3.0), brctc.EarlyEmission(3.0), brctc.DelayPenalty(0.1))
    expected = [brctc.bayes_risk_ctc_loss(logits, *rest, risk, from_logits=True).item() for risk in risks]
    assert [float(line) for line in run.stdout.split()] == pytest.approx(expected, rel=1e-5)
