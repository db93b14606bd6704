"""Reference times from other forced aligners: Kaldi's CTM, and TextGrids as the Montreal Forced Aligner's."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace as replaced
from pathlib import Path

from brctc.data.checks import word_time_problems
from brctc.data.ctm import ctm_name, read_ctm
from brctc.data.manifest import Row, WordTime
from brctc.data.prepare import Progress
from brctc.data.reference_times import AlignmentError, ReferenceTimes, put_together
from brctc.data.textgrid import read_textgrid
from brctc.data.units import timed_units
from brctc.files import file_name

SILENCES = ("", "<eps>", "sil", "<sil>", "!sil", "sp", "<s>", "</s>")
"""What aligners write where nothing is said, in any case."""
UNKNOWNS = ("<unk>", "[unk]", "<oov>", "spn", "<spn>", "<spoken_noise>")
"""What they write for a word that their dictionary lacks: the text says which one it is."""
OVERLAP_S = 0.02
"""Words may overlap by roundings of starts and durations to hundredths."""

Alignment = Callable[[Row], Sequence[WordTime] | None]
"""What an aligner has found in a row, silences among it; None if it knows nothing of the row."""


def read_ctm_alignment(path: Path, rows: Sequence[Row]) -> Alignment:
    """Of a CTM whose utterances are called by the rows' ids."""
    counted = Counter(ctm_name(row.id) for row in rows)
    if double := [row.id for row in rows if counted[ctm_name(row.id)] > 1]:
        raise ValueError(f"{' and '.join(double[:2])} are both {ctm_name(double[0])} in a CTM")
    words, wrong = read_ctm(path, counted)

    def find(row: Row) -> Sequence[WordTime] | None:
        name = ctm_name(row.id)
        if name in wrong:
            raise AlignmentError(wrong[name])
        return words.get(name)

    return find


def read_textgrids(folder: Path, rows: Sequence[Row], tier: str = "words") -> Alignment:
    """Of a folder with a file for each utterance, in folders of speakers or not: called by the row's id, or
    by its audio file."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a directory")
    by_name: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() == ".textgrid":
            by_name.setdefault(path.stem, []).append(path)
    stems = Counter(row.path.stem for row in rows if row.path is not None)
    taken: dict[Path, str] = {}

    def find(row: Row) -> Sequence[WordTime] | None:
        assert row.path is not None, "rows without audio have no alignment"
        folders = (row.speaker, row.path.parent.name)
        found = by_name.get(file_name(row.id), [])
        if len(found) > 1:
            found = [path for path in found if path.parent.name in folders] or found
        if not found and row.start_sample is None and row.num_samples is None:
            # another speaker may have a recording of this name: it must be in a folder of this one's
            found = [
                path
                for path in by_name.get(row.path.stem, [])
                if path.parent.name in folders or (path.parent == folder and stems[path.stem] == 1)
            ]
        if len(found) > 1:
            raise AlignmentError(f"there are several TextGrids: {', '.join(map(str, found))}")
        if not found:
            return None
        if (other := taken.setdefault(found[0], row.id)) != row.id:
            raise AlignmentError(f"{found[0]} is that of {other}")
        return read_textgrid(found[0], tier)

    return find


def import_reference_times(
    rows: Sequence[Row],
    alignment: Alignment,
    *,
    replace: bool = False,
    progress: Progress | None = None,
) -> ReferenceTimes:
    """Gives an aligner's times to rows that have none, or with `replace` to all.

    What the aligner says must be the text, up to case and punctuation; silences are left out. A row that it
    does not know, or that is something else, is among the failures with the reason.
    """
    times: dict[str, tuple[WordTime, ...]] = {}
    reasons: dict[str, str] = {}
    missing = 0
    for done, row in enumerate(rows, start=1):
        try:
            if row.path is None:
                raise AlignmentError("there is no audio, only text")
            found = alignment(row)
            if found is not None:
                times[row.id] = _checked(row, found)
            elif replace or row.word_times is None:
                missing += 1
                reasons[row.id] = "the alignment lacks it"
        except ValueError as error:  # of a damaged file, too
            reasons[row.id] = str(error)
        if progress is not None:
            progress(done, len(rows))
    if rows and missing == len(rows):
        raise ValueError(f"none of the {len(rows)} ids is in the alignment, such as {rows[0].id!r}")
    return put_together(rows, times, reasons, replace)


def _checked(row: Row, found: Sequence[WordTime]) -> tuple[WordTime, ...]:
    before = WordTime("", 0.0, 0.0)
    for time in found:
        if not max(before.start_s, before.end_s - OVERLAP_S - 1e-6) <= time.start_s <= time.end_s:
            raise AlignmentError(
                f"{time.word!r} from {time.start_s:g} to {time.end_s:g} s is out of order, or overlaps "
                f"{before.word!r} from {before.start_s:g} to {before.end_s:g} s"
            )
        before = time
    matched = match_words(found, row.text)
    if problems := word_time_problems(replaced(row, word_times=matched)):
        raise AlignmentError(problems[0])
    return matched


def match_words(found: Sequence[WordTime], text: str) -> tuple[WordTime, ...]:
    """The times of a text's words, as the text writes them.

    Several words of an aligner may be one of the text ("well known" for well-known), and one may be several
    Chinese or Japanese characters, which stay together as its word. What an aligner did not know is a word of
    the text, or a character.
    """
    written = text.casefold().split()
    spoken = [t for t in found if t.word.casefold() not in SILENCES or t.word.casefold() in written]
    for unknown_is_word in (False, True):
        matched = _match(spoken, text, unknown_is_word)
        if matched is not None:
            return matched
    said = " ".join(time.word for time in spoken)
    raise AlignmentError(f"the alignment says {said!r}, the text says {text!r}")


def _match(spoken: Sequence[WordTime], text: str, unknown_is_word: bool) -> tuple[WordTime, ...] | None:
    """Steps through both, and takes the fewest words and units at a time that are the same."""
    words = [timed_units(word, "char") for word in text.split()]
    units = [(unit, n) for n, word in enumerate(words) for unit in word]
    matched, i, j = [], 0, 0
    while i < len(spoken) and j < len(units):
        first_word, first_unit = i, j
        unknown = _is_unknown(spoken[i])
        said, meant = _letters(spoken[i].word), _letters(units[j][0])
        i, j = i + 1, j + (len(words[units[j][1]]) if unknown and unknown_is_word else 1)
        while said != meant and not unknown:
            if meant.startswith(said) and i < len(spoken) and not _is_unknown(spoken[i]):
                said += _letters(spoken[i].word)
                i += 1
            elif said.startswith(meant) and j < len(units):
                meant += _letters(units[j][0])
                j += 1
            else:
                return None
        part = units[first_unit:j]
        one_word = part[0][1] == part[-1][1]
        if not one_word or (i - first_word > 1 and len(part) > 1):  # no time is known of what is between them
            return None
        word = "".join(unit for unit, _ in part)
        matched.append(WordTime(word, spoken[first_word].start_s, spoken[i - 1].end_s))
    return tuple(matched) if i == len(spoken) and j == len(units) else None


def _is_unknown(time: WordTime) -> bool:
    return time.word.casefold() in UNKNOWNS


def _letters(word: str) -> str:
    """What is compared: neither case nor punctuation nor width."""
    folded = unicodedata.normalize("NFKC", word).casefold()
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LMN") or word
