"""What a log says while something takes long."""

import pytest

from brctc import progress
from brctc.progress import ProgressDisplay


def test_a_log_has_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(progress, "NOTE_S", 0.0)
    with ProgressDisplay() as display:
        display.show("decoding [a]", 1, 3)
        display.show("decoding [a]", 1, 3)  # nothing new
        display.show("decoding [a]", 3, 3, "loss [/red] 2.0")
    assert capsys.readouterr().err == "decoding [a]: 1 of 3\ndecoding [a]: 3 of 3, loss [/red] 2.0\n"


def test_short_work_leaves_nothing_in_a_log(capsys: pytest.CaptureFixture[str]):
    with ProgressDisplay() as display:
        display.show("decoding", 3, 3)
    assert capsys.readouterr().err == ""


def test_names_are_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A run may be called what it likes."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    with ProgressDisplay(keep=True) as display:
        display.show("run[/red]", 1, 2, "[/bold]")
    shown = capsys.readouterr().err
    assert "run[/red]" in shown
    assert "[/bold]" in shown
