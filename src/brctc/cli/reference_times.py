"""`brctc reference-times`"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from brctc.cli.shared import Flag, OptionalDirectory, OptionalFile, progress_bars, table
from brctc.data import (
    PreparationError,
    ReferenceTimes,
    Row,
    find_reference_times,
    import_reference_times,
    read_ctm_alignment,
    read_manifest,
    read_textgrids,
    write_manifest,
)
from brctc.data.units import timed_units


@dataclass(frozen=True, kw_only=True)
class Command:
    """Find out when each word of a corpus is said, by forced alignment, or from another aligner's files.
    - It writes the manifest with the column word_times, which latency is measured against. Times
      that are there already are kept, and compared with the aligner's.
    - By itself it aligns English, with pocketsphinx's HMMs: it needs the extra align (in the
      checkout, pip install '.[align]'). A text with a word that the dictionary lacks, or that does
      not fit its audio, is listed and has no times.
    - --from-ctm takes a CTM, as Kaldi writes, with utterances called by their ids.
      --from-textgrids takes a folder of TextGrids, as the Montreal Forced Aligner writes:
      ID.TextGrid, or SPEAKER/NAME.TextGrid for the speaker's audio file NAME. Times count from the
      start of the utterance. Silences are left out, <unk> and spn are words of the text.
    - What another aligner says must be the text, up to case and punctuation. Else everything that
      is missing or wrong is listed, and nothing is written. A Chinese text may be aligned in words
      or in characters: where latency counts characters, those of a word share its time evenly.

    Examples:
      brctc reference-times test.tsv --out test-times.tsv
      brctc reference-times data/grid/manifest.tsv --out aligned.tsv --replace
      brctc reference-times test.tsv --from-ctm exp/tri3_ali/ctm --out test-times.tsv
      brctc reference-times test.tsv --from-textgrids aligned --tier words --out test-times.tsv
    """

    manifest: Annotated[Path, Positional, arg(metavar="MANIFEST")]
    """A TSV file, as `brctc prepare` takes it."""
    out: Annotated[Path, arg(metavar="MANIFEST")]
    """Gets the manifest with the times, and with all its other columns."""
    replace: Flag = False
    """Write the aligner's times for all rows that it can align."""
    from_ctm: OptionalFile = None
    """Take the times from a CTM."""
    from_textgrids: OptionalDirectory = None
    """Take the times from TextGrids, a file for each utterance."""
    tier: str = "words"
    """Of the TextGrids."""
    skip_bad: Flag = False
    """Write rows without times if what --from-ctm or --from-textgrids says of them is missing or wrong."""

    def run(self) -> None:
        """Aligns all rows, or looks them up, and writes the manifest."""
        rows = read_manifest(self.manifest)
        if not rows:
            raise ValueError(f"{self.manifest} has no rows")
        if self.out.is_dir():
            raise ValueError(f"{self.out} is a directory, expected a file")
        self._check()
        source = self.from_ctm or self.from_textgrids
        if source is None:
            self.out.parent.mkdir(parents=True, exist_ok=True)  # better known now than after hours
            with progress_bars() as bars:
                found = find_reference_times(rows, replace=self.replace, progress=partial(bars, "aligning"))
        else:
            found = self._look_up(rows)
            if found.failures and not self.skip_bad:
                raise PreparationError(str(source), found.failures)
        write_manifest(self.out, found.rows)
        show(found)
        print(f"written to {self.out}")

    def _check(self) -> None:
        if self.from_ctm is not None and self.from_textgrids is not None:
            raise ValueError("give one of --from-ctm and --from-textgrids")
        if self.skip_bad and self.from_ctm is None and self.from_textgrids is None:
            raise ValueError("--skip-bad belongs to --from-ctm and --from-textgrids")

    def _look_up(self, rows: list[Row]) -> ReferenceTimes:
        """What another aligner has found."""
        if self.from_ctm is not None:
            alignment = read_ctm_alignment(self.from_ctm, rows)
        else:
            assert self.from_textgrids is not None
            alignment = read_textgrids(self.from_textgrids, rows, self.tier)
        with progress_bars() as bars:
            return import_reference_times(
                rows, alignment, replace=self.replace, progress=partial(bars, "reading")
            )


def show(found: ReferenceTimes) -> None:
    """How many rows were aligned, which were not, and how far the aligner is from what was known."""
    with_times = sum(row.word_times is not None for row in found.rows)
    header = ("rows", "aligned", "failed", "with times")
    print(table(header, [(len(found.rows), found.aligned, len(found.failures), with_times)]))
    if found.failures:
        print("failed:\n  " + "\n  ".join(map(str, found.failures)))
    words = [time.word for row in found.rows for time in row.word_times or ()]
    if several := sum(len(timed_units(word, "char")) > 1 for word in words):
        print(f"{several} of {len(words)} times are of several characters, which share them evenly")
    if words := len(found.start_differences_ms):
        print(f"distance from the {words} times that were known before, in ms:")
        distances = {"start": found.start_differences_ms, "end": found.end_differences_ms}
        rows = [(name, *_median_and_p90(np.abs(values))) for name, values in distances.items()]
        print(table(("", "median", "90th percentile"), rows))


def _median_and_p90(values: np.ndarray) -> list[str]:
    return [f"{value:.0f}" for value in np.percentile(values, [50, 90])]
