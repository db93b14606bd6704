"""When each word is said, by forced alignment: pocketsphinx's HMMs for English (the extra `align`)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from brctc.data.audio import AudioError, resample
from brctc.data.manifest import Problem, Row, WordTime
from brctc.data.prepare import Progress
from brctc.data.recordings import read_by_file
from brctc.extras import check_extra

SAMPLE_RATE = 16000
FRAME_S = 0.01
BEAM = 1e-48
FILLERS = ("<s>", "</s>", "<sil>", "[NOISE]", "[SPEECH]")
"""Words of the aligner's dictionary that stand for no word."""


class AlignmentError(ValueError):
    """A text that could not be aligned with its audio."""


class Aligner:
    """pocketsphinx's forced alignment with the model and the dictionary of its wheel."""

    def __init__(self) -> None:
        check_extra(("pocketsphinx",), "align")
        self._decoder = _decoder()

    def align(self, text: str, samples: np.ndarray) -> tuple[WordTime, ...]:
        """The times of the text's words in mono samples at SAMPLE_RATE, to a hundredth of a second.

        Words are looked up in lower case. The same input has the same times, whatever came before.
        """
        words = text.split()
        spoken = [word.lower() for word in words]
        if not words:
            raise AlignmentError("the text is empty")
        unknown = [word for word in dict.fromkeys(spoken) if not self.knows(word)]
        if unknown:
            raise AlignmentError(f"not in the dictionary: {', '.join(unknown)}")
        try:
            found = self._search(" ".join(spoken), samples) if len(samples) else []
        except RuntimeError as error:
            self._decoder = _decoder()  # the old one is still inside the utterance
            raise AlignmentError(f"pocketsphinx gave up: {error}") from error
        if len(found) != len(words) or not all(map(_is_said_as, spoken, found)):
            raise AlignmentError("no alignment found: the audio does not fit the text")
        return tuple(
            WordTime(word, round(time.start_s, 2), round(time.end_s, 2))
            for word, time in zip(words, found, strict=True)
        )

    def knows(self, word: str) -> bool:
        """Whether the dictionary has a word in lower case."""
        return word not in FILLERS and self._decoder.lookup_word(word) is not None

    def _search(self, text: str, samples: np.ndarray) -> list[WordTime]:
        """The dictionary's words on the best path; none if no path reaches the end of the text."""
        decoder = self._decoder
        decoder.reinit_feat()  # or else its estimate of the noise is the utterance's before
        decoder.set_align_text(text)
        decoder.start_utt()
        decoder.process_raw((np.clip(samples, -1, 1) * 32767).astype(np.int16).tobytes(), full_utt=True)
        decoder.end_utt()
        if decoder.hyp() is None:
            return []
        return [
            WordTime(part.word, part.start_frame * FRAME_S, (part.end_frame + 1) * FRAME_S)
            for part in decoder.seg()
            if part.word not in FILLERS
        ]


def _decoder() -> Any:
    from pocketsphinx import Decoder

    return Decoder(
        lm=None,
        loglevel="FATAL",
        bestpath=False,  # the best path of the word lattice can lack words of the text
        beam=BEAM,
        pbeam=BEAM,
        wbeam=BEAM,  # narrower by default, which loses texts that do fit at the ends of words
    )


def _is_said_as(word: str, time: WordTime) -> bool:
    """The dictionary's second pronunciation of "a" is "a(2)"."""
    return time.word == word or time.word.startswith(f"{word}(")


@dataclasses.dataclass(frozen=True)
class ReferenceTimes:
    """A manifest's rows with their word times, and how the aligner did."""

    rows: list[Row]
    """In their order; a row whose alignment failed is as it was."""
    aligned: int
    failures: list[Problem]
    start_differences_ms: np.ndarray
    """The aligner's start of each word minus the one that was known before."""
    end_differences_ms: np.ndarray


def find_reference_times(
    rows: Sequence[Row], *, replace: bool = False, progress: Progress | None = None
) -> ReferenceTimes:
    """Aligns all rows, and gives times to those that have none; `replace` gives them to all.

    Rows whose times are known are aligned too: the differences say how far the others can be trusted.
    An utterance that fails is named with the reason, and the others go on.
    """
    aligner = Aligner()
    times: dict[str, tuple[WordTime, ...]] = {}
    reasons: dict[str, str] = {}
    for done, (row, audio) in enumerate(read_by_file(rows), start=1):
        try:
            if isinstance(audio, AudioError):
                raise audio
            times[row.id] = aligner.align(row.text, resample(*audio, SAMPLE_RATE))
        except (AlignmentError, AudioError) as error:
            reasons[row.id] = str(error)
        if progress is not None:
            progress(done, len(rows))
    return put_together(rows, times, reasons, replace)


def put_together(
    rows: Sequence[Row],
    times: Mapping[str, tuple[WordTime, ...]],
    reasons: Mapping[str, str],
    replace: bool,
) -> ReferenceTimes:
    """Rows with the times that were found by their ids, where there are none or all are to be replaced."""
    differences = np.array(
        [
            (1000 * (found.start_s - known.start_s), 1000 * (found.end_s - known.end_s))
            for row in rows
            if row.id in times and row.word_times and _words(row.word_times) == _words(times[row.id])
            for found, known in zip(times[row.id], row.word_times, strict=True)
        ]
    ).reshape(-1, 2)
    return ReferenceTimes(
        [
            dataclasses.replace(row, word_times=times[row.id])
            if row.id in times and (replace or row.word_times is None)
            else row
            for row in rows
        ],
        len(times),
        [Problem(row.id, reasons[row.id]) for row in rows if row.id in reasons],
        differences[:, 0],
        differences[:, 1],
    )


def _words(times: Sequence[WordTime]) -> list[str]:
    return [time.word for time in times]
