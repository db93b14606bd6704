"""What several commands need."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import yaml
from rich.console import Console
from tyro.conf import UseAppendAction, arg

from brctc.evaluate.results import Evaluation
from brctc.files import file_name
from brctc.progress import ProgressDisplay
from brctc.report.tables import results_table, to_rich
from brctc.yaml_files import parse_yaml

Assignments = Annotated[
    tuple[tuple[str, ...], ...], UseAppendAction, arg(metavar="KEY=VALUE ...", help_behavior_hint="")
]
"""--set a=1 b.c=2 --set d=3"""
Flag = Annotated[bool, arg(help_behavior_hint="")]
Processes = Annotated[int, arg(metavar="N")]
Jobs = Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: all cores)")]
Split = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: the test set)")]
RtfShare = Annotated[str | None, arg(metavar="1/88", help_behavior_hint="(default: 20 utterances)")]
SkipBlanks = Annotated[float | None, arg(metavar="P", help_behavior_hint="")]
Ray = Annotated[str | None, arg(metavar="HOST", help_behavior_hint="")]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalDirectory = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]


def parse_share(given: str | None) -> Fraction | None:
    """Of a fraction or a decimal number."""
    try:
        return None if given is None else Fraction(given)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--rtf-share is {given!r}, expected a share such as 1/88 or 0.1") from None


def parse_assignments(given: Assignments) -> dict[str, Any]:
    """Keys with their values, which are YAML."""
    found: dict[str, Any] = {}
    for text in (text for group in given for text in group):
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ValueError(f"--set takes key=value, got {text!r}")
        try:
            found[key] = parse_yaml(value)
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
    """Shows what is being done: call it with the name of the work, how much is done, and of how much."""
    with ProgressDisplay() as display:
        yield display.show


@contextmanager
def show_preparing() -> Iterator[Callable[[str, int, int], None]]:
    """The same for the splits of a corpus, by their names."""
    with progress_bars() as show:
        yield lambda split, done, total: show(f"preparing {split}", done, total)


def show_results(evaluation: Evaluation) -> None:
    """The table of an evaluation."""
    Console().print(to_rich(results_table(evaluation, paper=False)))


def check_file(out: Path | None, option: str = "--out") -> None:
    """Before the work that it is for."""
    if out is not None and out.is_dir():
        raise ValueError(f"{option} {out} is a directory, expected a file")


def check_page(out: Path) -> None:
    """A page has its numbers beside it, in a JSON file of the same name."""
    check_file(out)
    if out.suffix == ".json":
        raise ValueError(f"--out {out} is where the page's numbers go: use {out.with_suffix('.html')}")


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
