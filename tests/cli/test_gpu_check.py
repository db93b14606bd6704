"""`brctc gpu-check` without a GPU."""

import json

import pytest
import torch

from brctc.check.findings import Finding
from brctc.check.report import Report, describe_machine
from brctc.cli import gpu_check, main
from tests.cli.commands import brctc


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="takes ten minutes on a GPU")
def test_the_small_form(tmp_path):
    found = brctc(tmp_path, "gpu-check", "--out", "found.json", TRITON_INTERPRET="1")
    assert found.code == 0, found.err + found.out
    content = json.loads((tmp_path / "found.json").read_text())
    groups = {check["group"] for check in content["checks"]}
    assert groups == {"kernels", "two processes", "speed", "systems"}
    assert all(check["verdict"] == "ok" for check in content["checks"])
    for check in content["checks"]:
        assert check["name"].split()[0] in found.out


def test_what_fails_is_in_the_table_and_the_exit_status(tmp_path, monkeypatch, capsys):
    findings = [
        Finding("kernels", "CTC", "ok", "fine"),
        Finding("systems", "mine", "failed", "the loss is nan"),
    ]
    report = Report(describe_machine(torch.device("cpu")), findings)
    monkeypatch.setattr(gpu_check, "check_machine", lambda *_: report)
    assert main(["gpu-check", "--out", str(tmp_path / "found.json")]) == 2
    said = capsys.readouterr()
    assert "the loss is nan" in said.out
    assert said.err == "brctc gpu-check: 1 of 2 checks failed: systems: mine\n"
    assert json.loads((tmp_path / "found.json").read_text())["failed"] == 1


def test_options(tmp_path):
    (tmp_path / "folder").mkdir()
    assert "is a directory" in brctc(tmp_path, "gpu-check", "--out", "folder").err
    assert "--minutes 0: expected more than 0" in brctc(tmp_path, "gpu-check", "--minutes", "0").err
    late = brctc(tmp_path, "gpu-check", "--minutes", "1e-9")
    assert late.code == 0
    assert "the time is up" in late.out
