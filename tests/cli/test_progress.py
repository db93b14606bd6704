"""What a log says while something takes long."""

import pytest

from brctc.cli import shared
from brctc.cli.shared import progress_bars


def test_a_log_has_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(shared, "NOTE_S", 0.0)
    with progress_bars() as show:
        show("decoding [a]", 1, 3)
        show("decoding [a]", 1, 3)  # nothing new
        show("decoding [a]", 3, 3)
    assert capsys.readouterr().err == "decoding [a]: 1 of 3\ndecoding [a]: 3 of 3\n"


def test_short_work_leaves_nothing_in_a_log(capsys: pytest.CaptureFixture[str]):
    with progress_bars() as show:
        show("decoding", 3, 3)
    assert capsys.readouterr().err == ""
