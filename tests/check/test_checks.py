"""`brctc gpu-check` in its small form: what is right passes, what is wrong is named and stops nothing."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from brctc.check import kernels, parallel, systems
from brctc.check.findings import Check, Finding, NotHereError, Outcome, run_check, run_checks
from brctc.check.kernels import Shape, kernel_checks
from brctc.check.report import Report, describe_machine
from brctc.check.speed import RISKS, candidates, make_batch, speed_checks
from brctc.check.systems import Effort, reduced, system_checks
from brctc.train import load_recipe

CPU = torch.device("cpu")
PAPER = sorted(
    path
    for path in (Path(__file__).parents[2] / "recipes" / "paper").glob("*.yaml")
    if not path.name.startswith("base")
)


def test_kernels():
    """Triton's in its interpreter, where there is no GPU."""
    findings = [run_check(check) for check in kernel_checks(CPU, Shape(2, 6, 2, 5))]
    assert {finding.name.split(", ")[1] for finding in findings} == {"triton", "cpu"}
    for finding in findings:
        assert finding.verdict == "ok" or "triton" in finding.said, finding
    assert all(f.figures["gradient_error"] < 1e-2 for f in findings if f.verdict == "ok")


def test_a_wrong_kernel_is_found(monkeypatch):
    """One whose gradient is off by a thousandth."""
    right = kernels.bayes_risk_ctc_loss

    def wrong(scores, *rest, backend, **options):
        found = right(scores, *rest, backend=backend, **options)
        return found if backend == "reference" else found + 1e-3 * (scores - scores.detach()).sum((0, 2))

    monkeypatch.setattr(kernels, "bayes_risk_ctc_loss", wrong)
    found = {
        check.name: run_check(check) for check in kernel_checks(CPU, Shape(2, 6, 2, 5)) if "cpu" in check.name
    }
    assert found["CTC, cpu, float32"].verdict == "failed"
    assert "more than 5e-05" in found["CTC, cpu, float32"].said
    assert found["transducer, cpu, float32"].verdict == "ok"


def test_what_fails_stops_nothing():
    def run(name):
        def inside():
            if name == "bad":
                raise RuntimeError("CUDA error: an illegal memory access\nmore")
            if name == "absent":
                raise NotHereError("no such device")
            return Outcome("well", {"x": 1}, good=name != "wrong")

        return Check("group", name, inside)

    names = ["bad", "absent", "wrong", "good"]
    found = list(run_checks([run(name) for name in names], time.monotonic() + 60))
    assert [finding.verdict for finding in found] == ["failed", "skipped", "failed", "ok"]
    assert found[0].said == "RuntimeError: CUDA error: an illegal memory access"
    late = list(run_checks([run("good")], time.monotonic() - 1))
    assert late[0].verdict == "skipped"
    assert "give more --minutes" in late[0].said


def test_speed():
    (check,) = speed_checks(CPU, [Shape(2, 10, 3, 6)], 1)
    found = run_check(check)
    assert found.verdict == "ok"
    assert set(found.figures["ratios"]) == {f"torch / {name}" for name in RISKS}
    calls = candidates(make_batch(Shape(2, 10, 3, 6)), RISKS, "cpu")
    torch.testing.assert_close(calls["torch fused"](), calls["vanilla fused"](), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("path", PAPER[:: max(1, len(PAPER) // 3)], ids=lambda path: path.stem)
def test_systems(path):
    checks = list(system_checks(CPU, [path], Effort(small=True, seconds=0.0)))
    assert len(checks) == len(load_recipe(path).stages)
    for check in checks:
        found = run_check(check)
        assert found.verdict == "ok", found.said
        assert found.figures["steps_per_second"] > 0
        assert found.figures["halved"] == 0


def test_reduced_recipes():
    for path in PAPER:
        recipe = reduced(load_recipe(path))
        assert recipe.model.encoder.dim <= 32


def test_out_of_memory_halves_the_batch(monkeypatch):
    real = systems.synthetic_batch

    def too_large(recipe, shape, sizes, device):
        if shape.examples > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(recipe, shape, sizes, device)

    monkeypatch.setattr(systems, "synthetic_batch", too_large)
    path = next(path for path in PAPER if "aishell1" in path.name)
    check, *_ = system_checks(CPU, [path], Effort(small=True, seconds=0.0))
    found = run_check(check)
    assert found.verdict == "ok"
    assert (found.figures["examples"], found.figures["halved"]) == (1, 1)
    assert "OUT OF MEMORY at first: batch halved 1 times" in found.said


def test_parts_of_a_batch_make_its_gradient(monkeypatch):
    """Without processes: the shares of both parts add up, and a changed example is noticed."""
    whole = parallel.gradients(0, 1, CPU)
    total = sum(tensor.double().square().sum() for tensor in whole)
    assert total > 0
    assert parallel._error(whole, whole) == 0
    other = [tensor * 1.001 for tensor in whole]
    assert parallel._error(other, whole) > parallel.TOLERANCE


@pytest.mark.slow
def test_two_processes():
    (check,) = parallel.parallel_checks()
    found = run_check(check)
    assert found.verdict == "ok", found.said
    assert found.figures["gradient_error"] <= parallel.TOLERANCE


def test_the_report(tmp_path):
    good = Finding("kernels", "a", "ok", "fine", {"gradient_error": float("inf")})
    report = Report(describe_machine(CPU), [good, replace(good, name="b", verdict="failed")])
    report.save(tmp_path / "found.json")
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["failed"] == 1
    assert content["machine"]["torch"] == torch.__version__
    assert content["checks"][0]["figures"] == {"gradient_error": "inf"}
    assert [finding.name for finding in report.failed] == ["b"]
