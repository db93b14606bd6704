"""`brctc stream`"""

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text
from tyro.conf import Positional, arg

from brctc.cli.shared import Flag
from brctc.data import AudioError, load_audio, record
from brctc.data.audio import AudioFile
from brctc.decode import Clock, RealClock, SimulatedClock, StreamingRecognizer, play
from brctc.decode.audio_stream import Samples
from brctc.runs import model_directory

TAIL_TOKENS = 300  # no terminal has more in a line


@dataclass(frozen=True, kw_only=True)
class Command:
    """Show what an online model understands while audio files play one by one, or while you speak.
    - A line for every token: the file, the token, when it fires (s), when it is known (s), and its
      latency in between (ms). Then the file with its text. Columns are separated by tabs.
    - On a terminal the end of the text so far is below, as it grows.
    - A token fires where the frame ends in which the model's spike is. How much later that is than the
      word (the drift) no model can know: where times are known, `brctc latency` measures the whole.

    Examples:
      brctc stream exp/online talk.wav
      brctc stream exp/online talk.wav interview.flac --fast > tokens.tsv
      brctc stream exp/online --microphone
    """

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """The directory of a run or of its model, which has an Emformer encoder."""
    audio: Annotated[tuple[Path, ...], Positional, arg(metavar="AUDIO ...", help_behavior_hint="")] = ()
    """Audio files of any format that libsndfile reads, and of any rate."""
    fast: Flag = False
    """As fast as can be computed; latencies (waiting for audio, and computation) are those of real time."""
    microphone: Flag = False
    """Listen to the default microphone until Ctrl-C. Needs the extra mic."""

    def run(self) -> None:
        """Plays the files, or listens."""
        if bool(self.audio) == self.microphone:
            raise ValueError("give either AUDIO files or --microphone")
        if self.microphone and self.fast:
            raise ValueError("--fast is for files: a microphone has its own time")
        check_audio(self.audio)
        recognizer = StreamingRecognizer.from_directory(model_directory(self.model))
        recognizer.push(np.zeros(2 * recognizer.sample_rate))  # the first steps of a process take longer
        if sys.stdout.isatty():
            print("file\ttoken\tfires, s\tknown, s\tlatency, ms")
        if self.microphone:
            listen(recognizer, record(recognizer.sample_rate, tell_lost))
        for path, name in zip(self.audio, short_names(self.audio), strict=True):
            samples = load_audio(path, recognizer.sample_rate)
            show_tokens(name, recognizer, samples, SimulatedClock() if self.fast else RealClock())


def check_audio(audio: Sequence[Path]) -> None:
    """Before the first one plays: the last one's turn may come in an hour."""
    problems = []
    for path in audio:
        try:
            AudioFile(path).close()
        except AudioError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n  ".join(problems))


def short_names(audio: Sequence[Path]) -> list[str]:
    """Without folder and ending, where that tells the files apart."""
    stems = [path.stem for path in audio]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in audio]


def listen(recognizer: StreamingRecognizer, blocks: Iterator[np.ndarray]) -> None:
    """Shows what is said until the blocks end, or Ctrl-C."""
    first = next(blocks)  # a clock that began before would count how long the microphone took to open
    print("listening; Ctrl-C ends it", file=sys.stderr)
    clock = RealClock(now_s=len(first) / recognizer.sample_rate)
    show_tokens("microphone", recognizer, until_stopped(chain([first], blocks)), clock)


def tell_lost() -> None:
    """Samples are counted from the first one, so a gap makes all that follows look later than it is."""
    print(
        "audio was lost here (input overrun: slower than real time): latencies from now on include the gap",
        file=sys.stderr,
    )


def until_stopped(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Ctrl-C is the end of the blocks, whatever is being done: what was said before is still recognized. A
    second one is as ever."""
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        for block in blocks:
            yield block
            if stopped:
                return
    finally:
        signal.signal(signal.SIGINT, before)


def show_tokens(
    name: str, recognizer: StreamingRecognizer, audio: Samples | Iterable[Samples], clock: Clock
) -> None:
    """A line for each token as it is known, then the text."""
    recognizer.reset()
    latencies: list[float] = []
    tail: deque[int] = deque(maxlen=TAIL_TOKENS)
    with partial_text() as show:
        for token, known_s in play(recognizer, audio, clock):
            latencies.append(1000 * (known_s - token.fired_s))
            fields = f"{token.fired_s:.2f}\t{known_s:.2f}\t{latencies[-1]:.0f}"
            print(f"{name}\t{token.piece}\t{fields}", flush=True)
            tail.append(token.token)
            show(lambda: recognizer.model.tokenizer.decode(tail))
    print(f"{name}\t{recognizer.text}", flush=True)
    if latencies:
        mean, worst = sum(latencies) / len(latencies), max(latencies)
        print(
            f"{name}: latency {mean:.0f} ms on average, {worst:.0f} at most, from the spikes", file=sys.stderr
        )


@contextmanager
def partial_text() -> Iterator[Callable[[Callable[[], str]], None]]:
    """The end of a text in the terminal's last line, below what is printed; nothing where there is none."""
    if not sys.stdout.isatty():  # rich would believe FORCE_COLOR
        yield lambda text: None
        return
    console = Console()
    with Live(
        console=console, transient=True, auto_refresh=False, redirect_stderr=sys.stderr.isatty()
    ) as live:

        def show(text: Callable[[], str]) -> None:
            live.update(Text(last_cells(text(), console.width), style="bold", no_wrap=True), refresh=True)

        yield show


def last_cells(text: str, width: int) -> str:
    """As much of the end of a text as fits into a line."""
    text = text[-width:]
    while cell_len(text) > width:  # a Chinese character takes two
        text = text[1:]
    return text
