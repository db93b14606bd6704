"""What several commands need."""

import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from tyro.conf import UseAppendAction, arg

from brctc.data.config import RecipeLoader

Assignments = Annotated[
    tuple[tuple[str, ...], ...], UseAppendAction, arg(metavar="KEY=VALUE ...", help_behavior_hint="")
]
"""--set a=1 b.c=2 --set d=3"""
Flag = Annotated[bool, arg(help_behavior_hint="")]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalDirectory = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]

NOTE_S = 30.0  # between lines where there is no terminal to draw bars on


def parse_assignments(given: Assignments) -> dict[str, Any]:
    """Keys with their values, which are YAML."""
    found: dict[str, Any] = {}
    for text in (text for group in given for text in group):
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ValueError(f"--set takes key=value, got {text!r}")
        try:
            found[key] = yaml.load(value, Loader=RecipeLoader)
        except yaml.YAMLError:
            raise ValueError(f"--set {key}: {value!r} is not YAML") from None
    return found


def recipes_directory() -> Path:
    """The recipes that come with brctc: inside the installed package, or beside the sources."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent.parent / "recipes"


def find_recipe(name: str) -> Path:
    """A recipe file, or one that comes with brctc, such as handwriting/brctc."""
    if Path(name).is_file():
        return Path(name)
    directory = recipes_directory()
    ours = {
        path.relative_to(directory).with_suffix("").as_posix(): path for path in directory.rglob("*.yaml")
    }
    wanted = name.removeprefix("recipes/").removesuffix(".yaml")
    if wanted in ours:
        return ours[wanted]
    near = difflib.get_close_matches(wanted, ours, n=1)
    hint = f"did you mean {near[0]}?" if near else f"brctc brings: {', '.join(sorted(ours))}"
    raise ValueError(f"there is no recipe {name}; {hint}")


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on the terminal, or a line now and then in a log; to be called with what is done, how much of it
    is, and of how much."""
    console = Console(stderr=True)
    notes = Notes(console)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
            progress.update(tasks[what], completed=done, total=total)
            notes.print({what: f"{done} of {total}"})

        yield show


class Notes:
    """What goes on, for a log: where there is no terminal to draw on, a line every NOTE_S for all that has
    changed."""

    def __init__(self, console: Console) -> None:
        """Begins to wait."""
        self._console = console
        self._noted = time.monotonic()
        self._last: dict[str, str] = {}

    def print(self, states: Mapping[str, str]) -> None:
        """By what they are of."""
        if self._console.is_terminal or time.monotonic() < self._noted + NOTE_S:
            return
        for name, state in states.items():
            if self._last.get(name) != state:
                self._console.print(f"{name}: {state}", highlight=False, markup=False, soft_wrap=True)
        self._last |= states
        self._noted = time.monotonic()


def check_file(out: Path | None, option: str = "--out") -> None:
    """Before the work that it is for."""
    if out is not None and out.is_dir():
        raise ValueError(f"{option} {out} is a directory: say a file")


def check_page(out: Path) -> None:
    """A page has its numbers beside it, in a JSON file of the same name."""
    check_file(out)
    if out.suffix == ".json":
        raise ValueError(f"--out {out} is where the page's numbers go: say {out.with_suffix('.html')}")


def file_name(utterance: str) -> str:
    """What the files of an utterance are called."""
    return utterance.replace("/", "_")


def check_names(utterances: Iterable[str], name: Callable[[str], str] = file_name) -> None:
    """Refuses two utterances that would have the same name in what is written."""
    by_name: dict[str, str] = {}
    for utterance in utterances:
        other = by_name.setdefault(name(utterance), utterance)
        if other != utterance:
            raise ValueError(f"{other} and {utterance} would both be written to {name(utterance)}")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of text, all but the first to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    first, *others = (max(map(len, column)) for column in zip(*cells, strict=True))
    return "\n".join(
        "  ".join([row[0].ljust(first), *(c.rjust(w) for c, w in zip(row[1:], others, strict=True))])
        for row in cells
    )
