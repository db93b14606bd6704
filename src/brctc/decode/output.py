"""Results as files: JSON lines, and CTM, SRT and TextGrid for those that have times."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from brctc.data.ctm import ctm_name
from brctc.data.manifest import WordTime
from brctc.decode.result import Result
from brctc.files import write_text

CUE_COLUMNS = 84  # two lines of 42, as subtitles usually are; ideographs take two columns
CUE_PAUSE_S = 1.0


def write_jsonl(path: str | Path, results: Iterable[Result]) -> None:
    """One JSON object per utterance: every field of its Result; times are null where there are none."""
    lines = []
    for result in results:
        fields = asdict(result)
        for name in ("token_times", "word_times"):
            times: tuple[WordTime, ...] | None = getattr(result, name)
            fields[name] = times and [
                {"text": text, "start_s": round(start_s, 4), "end_s": round(end_s, 4)}
                for text, start_s, end_s in times
            ]
        fields["nbest"] = [alternative._asdict() for alternative in result.nbest]
        lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
    _write(path, lines)


def write_ctm(path: str | Path, results: Iterable[Result]) -> None:
    """NIST's CTM: utterance, channel, start, duration and word, a line per word or Chinese character."""
    lines = []
    for result in results:
        name = ctm_name(result.id)
        for word, start_s, end_s in _words(result):
            lines.append(f"{name} 1 {start_s:.3f} {end_s - start_s:.3f} {word}\n")
    _write(path, lines)


def write_srt(path: str | Path, result: Result) -> None:
    """Subtitles of one utterance; a new one at a pause or when two lines are full."""
    lines = []
    for number, (text, start_s, end_s) in enumerate(_cues(_words(result), result.text), start=1):
        lines.append(f"{number}\n{_srt_time(start_s)} --> {_srt_time(end_s)}\n{text}\n\n")
    _write(path, lines)


def write_textgrid(path: str | Path, result: Result) -> None:
    """Praat's TextGrid of one utterance: words as intervals, tokens as points where they are said."""
    words = _words(result)
    end_s = result.duration_s or 0.0
    intervals, last_s = [], 0.0
    for word in words:
        if word.start_s > last_s:
            intervals.append(WordTime("", last_s, word.start_s))  # intervals leave no gaps
        intervals.append(word)
        last_s = word.end_s
    if last_s < end_s or not intervals:
        intervals.append(WordTime("", last_s, end_s))
    points = [(text, (start + end) / 2) for text, start, end in result.token_times or ()]
    lines = [
        'File type = "ooTextFile"\nObject class = "TextGrid"\n\n',
        f"xmin = 0\nxmax = {end_s:.6f}\ntiers? <exists>\nsize = 2\nitem []:\n",
        _tier(1, "IntervalTier", "words", end_s, "intervals", len(intervals)),
    ]
    for number, (text, start, end) in enumerate(intervals, start=1):
        lines.append(f"        intervals [{number}]:\n            xmin = {start:.6f}\n")
        lines.append(f"            xmax = {end:.6f}\n            text = {_quoted(text)}\n")
    lines.append(_tier(2, "TextTier", "tokens", end_s, "points", len(points)))
    for number, (text, time) in enumerate(points, start=1):
        lines.append(f"        points [{number}]:\n            number = {time:.6f}\n")
        lines.append(f"            mark = {_quoted(text)}\n")
    _write(path, lines)


def _words(result: Result) -> tuple[WordTime, ...]:
    if result.word_times is None:
        raise ValueError(f"{result.id}: there are no times to write: {result.no_times}")
    return result.word_times


def _cues(words: Sequence[WordTime], text: str) -> list[WordTime]:
    """What is shown at a time; spaces are where the text has them."""
    cues: list[WordTime] = []
    place = 0
    for time in words:
        start = text.index(time.word, place)
        space = " " if start > place else ""
        place = start + len(time.word)
        if cues:
            shown, start_s, end_s = cues[-1]
            longer = shown + space + time.word
            if _columns(longer) <= CUE_COLUMNS and time.start_s - end_s <= CUE_PAUSE_S:
                cues[-1] = WordTime(longer, start_s, time.end_s)
                continue
        cues.append(time)
    return cues


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _srt_time(seconds: float) -> str:
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds // 1000:02d},{milliseconds % 1000:03d}"


def _tier(number: int, kind: str, name: str, end_s: float, items: str, size: int) -> str:
    return (
        f'    item [{number}]:\n        class = "{kind}"\n        name = "{name}"\n'
        f"        xmin = 0\n        xmax = {end_s:.6f}\n        {items}: size = {size}\n"
    )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _write(path: str | Path, lines: list[str]) -> None:
    write_text(Path(path), "".join(lines))
