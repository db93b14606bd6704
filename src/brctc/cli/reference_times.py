"""`brctc reference-times`"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from brctc.cli.shared import Flag, progress_bars, table
from brctc.data import ReferenceTimes, find_reference_times, read_manifest, write_manifest


@dataclass(frozen=True, kw_only=True)
class Command:
    """Find out when each word of a corpus is said, by forced alignment with pocketsphinx's HMMs.
    - It writes the manifest with the column word_times, which latency is measured against. Times
      that are there already are kept, and compared with the aligner's.
    - It knows English. A text with a word that its dictionary lacks, or that does not fit its
      audio, is listed and has no times.
    - It needs the extra align: in the checkout, pip install '.[align]'

    Examples:
      brctc reference-times test.tsv --out test-times.tsv
      brctc reference-times data/grid/manifest.tsv --out aligned.tsv --replace
    """

    manifest: Annotated[Path, Positional, arg(metavar="MANIFEST")]
    """A TSV file, as `brctc prepare` takes it."""
    out: Annotated[Path, arg(metavar="MANIFEST")]
    """Gets the manifest with the times, and with all its other columns."""
    replace: Flag = False
    """Write the aligner's times for all rows that it can align."""

    def run(self) -> None:
        """Aligns all rows, and writes the manifest."""
        rows = read_manifest(self.manifest)
        if not rows:
            raise ValueError(f"{self.manifest} has no rows")
        if self.out.is_dir():
            raise ValueError(f"{self.out} is a directory, expected a file")
        self.out.parent.mkdir(parents=True, exist_ok=True)  # better known now than after hours
        with progress_bars() as bars:
            found = find_reference_times(rows, replace=self.replace, progress=partial(bars, "aligning"))
        write_manifest(self.out, found.rows)
        show(found)
        print(f"written to {self.out}")


def show(found: ReferenceTimes) -> None:
    """How many rows were aligned, which were not, and how far the aligner is from what was known."""
    with_times = sum(row.word_times is not None for row in found.rows)
    header = ("rows", "aligned", "failed", "with times")
    print(table(header, [(len(found.rows), found.aligned, len(found.failures), with_times)]))
    if found.failures:
        print("failed:\n  " + "\n  ".join(map(str, found.failures)))
    if words := len(found.start_differences_ms):
        print(f"distance from the {words} times that were known before, in ms:")
        distances = {"start": found.start_differences_ms, "end": found.end_differences_ms}
        rows = [(name, *_median_and_p90(np.abs(values))) for name, values in distances.items()]
        print(table(("", "median", "90th percentile"), rows))


def _median_and_p90(values: np.ndarray) -> list[str]:
    return [f"{value:.0f}" for value in np.percentile(values, [50, 90])]
