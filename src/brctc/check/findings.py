"""What a check has found, and a list of checks of which none stops the others."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Verdict = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    group: str
    name: str
    verdict: Verdict
    said: str
    """In words: figures, or what is wrong."""
    figures: Mapping[str, Any] = field(default_factory=dict)


class Outcome(NamedTuple):
    """What a check returns."""

    said: str
    figures: dict[str, Any]
    good: bool = True


class NotHereError(Exception):
    """A check that this machine cannot make, and why."""


class Check(NamedTuple):
    """Something to be found out."""

    group: str
    name: str
    run: Callable[[], Outcome]


def run_check(check: Check) -> Finding:
    """Whatever goes wrong inside becomes a finding."""
    start = time.perf_counter()
    verdict: Verdict = "failed"
    figures: dict[str, Any] = {}
    try:
        said, figures, good = check.run()
        verdict = "ok" if good else "failed"
    except NotHereError as reason:
        verdict, said = "skipped", str(reason)
    except Exception as error:  # a kernel may fail in any way: the others are still of interest
        said = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    figures = {**figures, "seconds": round(time.perf_counter() - start, 3)}
    return Finding(check.group, check.name, verdict, said, figures)


def run_checks(checks: list[Check], deadline: float) -> Iterator[Finding]:
    """One after the other; those that would begin after the deadline (of time.monotonic) are skipped."""
    for check in checks:
        if time.monotonic() > deadline:
            yield Finding(check.group, check.name, "skipped", "the time is up: give more --minutes")
        else:
            yield run_check(check)
