"""What a training writes down: train.log, metrics.jsonl, TensorBoard, and a progress bar."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from brctc.evaluate.defaults import TRANSLATION
from brctc.files import naming, write_text
from brctc.progress import ProgressDisplay
from brctc.runs import RunDirectory


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, every step once; what a power cut has left of a last line is left
    out.

    A step's line: step (of the whole run, from 1), stage, epoch, loss and its terms by name, rate, factors
    (weights and risk factors, such as "final.risk"), gradient_norm, frames, utterances, and seconds: {data,
    forward, backward, optimiser}. A checkpoint's: step, stage, dev_loss and, if the stage has a CTC,
    dev_error, dev_errors and dev_texts, if it has an attention decoder, dev_accuracy and dev_accuracies, if
    the encoder can be trimmed, dev_factor (`brctc.train.validation` says what they are). At the end of a
    stage: step, stage, and loss_seconds: {ctc, trim, step}.
    """
    path = RunDirectory(run_dir).metrics_file
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n") or not line.strip("\0\n"):
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is damaged ({error}): remove it") from None
    return records


def error_name(record: Mapping[str, Any], ctc: str | None = None) -> str:
    """What the error rate of a CTC, by default of the last one, is called.

    A translation that is worded otherwise than its reference is no error: there, it is said what is counted.
    """
    texts: dict[str, str] = record.get("dev_texts", {})
    text = texts.get(ctc) if ctc is not None else next(reversed(texts.values()), None)
    return "dev CTC errors" if text == TRANSLATION else "dev error"


def describe_look(record: Mapping[str, Any], decimals: int = 2) -> list[str]:
    """How good the model is on the development set, as far as that was measured."""
    found = {error_name(record): record.get("dev_error"), "dev accuracy": record.get("dev_accuracy")}
    return [f"{name} {value:.{decimals}%}" for name, value in found.items() if value is not None]


class Journal:
    """Writes a run's records, from a given step on. Without a directory it writes nothing."""

    def __init__(self, run: RunDirectory | None, *, done: int, tensorboard: bool, progress: bool) -> None:
        self._run, self._board = run, None
        self._stage, self._done, self._total = "", 0, 0
        self._dev = ""  # what the bar says of the development set
        self._loss = math.nan  # the last one
        self._display = ProgressDisplay(visible=progress, keep=True)
        if run is None:
            return
        kept = [line for line in read_metrics(run.path) if line["step"] <= done]
        write_text(run.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))
        self._metrics = run.metrics_file.open("a", encoding="utf-8")
        self._log = run.log_file.open("a", encoding="utf-8")
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run.tensorboard), purge_step=done + 1)

    def __enter__(self) -> "Journal":
        if self._run is not None:
            self._display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is None:
            return
        if error is not None:
            self.note(f"{type(error).__name__}: {error}")
        self._display.__exit__(kind, error, trace)
        self._metrics.close()
        self._log.close()
        if self._board is not None:
            self._board.close()

    def note(self, text: str) -> None:
        """A line of the log, with the time."""
        if self._run is not None:
            _write_line(self._log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def begin(self, stage: str, done: int, total: int) -> None:
        """A stage begins, or continues after so many of its steps."""
        self._stage, self._done, self._total = stage, done, total
        if self._run is not None:
            self._display.show(stage, done, total)

    def step(self, record: Mapping[str, Any]) -> None:
        """A step's line."""
        if self._run is None:
            return
        self._write(record)
        self._loss = record["loss"]
        self._done += 1
        state = f"loss {record['loss']:.3f}  {self._dev}rate {record['rate']:.1e}"
        self._display.show(self._stage, self._done, self._total, state)

    def dev(self, record: Mapping[str, Any]) -> None:
        """A line about the development set."""
        if self._run is None:
            return
        self._write(record)
        said = [f"dev loss {record['dev_loss']:.4f}"]
        errors, accuracies = record.get("dev_errors", {}), record.get("dev_accuracies", {})
        said += [f"{error_name(record, name)} of {name} {error:.2%}" for name, error in errors.items()]
        said += [f"dev accuracy of {name} {share:.2%}" for name, share in accuracies.items()]
        said += [f"factor {record['dev_factor']:.3f}"] if "dev_factor" in record else []
        self.note(f"step {record['step']}: loss {self._loss:.4f}, {', '.join(said)}")
        self._dev = "".join(f"{part}  " for part in describe_look(record)) or self._dev

    def timing(self, record: Mapping[str, Any]) -> None:
        """A line about the speed of a stage."""
        if self._run is not None:
            self._write(record)

    def _write(self, record: Mapping[str, Any]) -> None:
        _write_line(self._metrics, json.dumps(record))
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, float) and math.isfinite(value):
                    self._board.add_scalar(name, value, record["step"])


def _write_line(file: TextIO, line: str) -> None:
    """A line that is in the file, or an error that names it."""
    with naming(file.name):
        file.write(line + "\n")
        file.flush()
