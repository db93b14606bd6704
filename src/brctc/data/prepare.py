"""From a manifest to a prepared split: every row checked, every problem named."""

import dataclasses
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from brctc.align import check_feasible
from brctc.data.audio import AudioError, AudioFile, change_speed, resample
from brctc.data.features import FeatureConfig, fbank, num_frames
from brctc.data.manifest import PreparationError, Problem, Row, WordTime, duplicate_ids, parse_manifest
from brctc.data.prepared import PreparedWriter, Summary
from brctc.data.tokens import TokenConfig, Tokenizer

DURATION_TOLERANCE_S = 0.1
"""How far the manifest's seconds may be from the audio's: enough for roundings and codecs' delays."""
NOT_TEXT = ("Cc", "Cn", "Co", "Cs")
"""Unicode categories that no transcript needs: control, unassigned, private use, surrogate."""

Progress = Callable[[int, int], None]
"""Called with the utterances done and the utterances in all."""
Audio = tuple[np.ndarray, int]
"""Samples and their rate."""


def prepare_manifest(
    manifest: str | Path | Sequence[Row],
    out_dir: str | Path,
    split: str,
    features: FeatureConfig | None = None,
    *,
    tokens: TokenConfig | Tokenizer | None = None,
    subsampling: int = 4,
    speeds: Sequence[float] = (1.0,),
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Turns a manifest (or its rows) into a prepared split, `Prepared(out_dir, split)`.

    A PreparationError lists all problems at once, and nothing is written.

    Args:
        features: what the features are; the defaults are the paper's.
        tokens: what a transcript is counted in, to see whether it fits into its frames: characters,
            unless told. Where there is a tokenizer of the training split, give that.
        subsampling: the encoder's; frames behind it are what a transcript must fit into.
        speeds: the speeds each utterance is stored at; ids at other speeds than 1 end in "_sp0.9".
        skip_bad: leave bad rows out and list them in the summary.
    """
    features = features or FeatureConfig()
    check_speeds(speeds)
    from_file = isinstance(manifest, str | Path)
    name = str(manifest) if from_file else f"split {split!r}"
    rows, problems = parse_manifest(manifest) if from_file else (list(manifest), [])
    if not rows and not problems:
        raise ValueError(f"{name} has no rows")
    problems += duplicate_ids(rows)
    unique = {row.id: row for row in reversed(rows)}  # the first of equal ids
    text_problems = [Problem(row.id, what) for row in unique.values() for what in row_problems(row)]
    problems += reversed(text_problems)
    faulty = {problem.id for problem in text_problems}
    readable = [row for row in reversed(unique.values()) if row.path.is_file()]
    tokenizer = _tokenizer([row.text for row in readable if row.id not in faulty], tokens)
    resampled: set[int] = set()
    with PreparedWriter(
        out_dir,
        split,
        feature_dim=features.num_bins,
        frame_shift_s=features.frame_shift_s,
        feature_config=features,
    ) as writer:
        for done, (row, audio) in enumerate(read_by_file(readable), start=1):
            if progress is not None:
                progress(done, len(readable))
            if isinstance(audio, AudioError):
                problems.append(Problem(row.id, str(audio)))
                continue
            if row.id in faulty or tokenizer is None:
                continue
            samples, rate = audio
            if rate != features.sample_rate:
                resampled.add(rate)
            samples = resample(samples, rate, features.sample_rate)
            labels = tokenizer.encode(row.text)
            for speed in speeds:
                id, word_times = at_speed(row.id, row.word_times, speed)
                played = change_speed(samples, speed)
                frames = num_frames(len(played), features)
                what = length_problem(labels, frames, tokenizer.kind, subsampling)
                if what is None and (skip_bad or not problems):  # else only further problems are of interest
                    what = writer.problem_with(id, stored := fbank(played, features))
                    if what is None:
                        writer.add(id, row.text, stored, row.speaker, word_times)
                if what is not None:
                    problems.append(Problem(id, what))
        if problems and not skip_bad:
            raise PreparationError(name, problems)
    return dataclasses.replace(writer.summary(), skipped=tuple(problems), resampled=tuple(sorted(resampled)))


def row_problems(row: Row) -> list[str]:
    """What is wrong with a row that can be seen without reading its audio."""
    problems = []
    if not row.text.strip():
        problems.append("the text is empty")
    odd = sorted(c for c in set(row.text) if c == "\ufffd" or unicodedata.category(c) in NOT_TEXT)
    if odd:
        codes = ", ".join(f"U+{ord(c):04X}" for c in odd)
        problems.append(f"the text has characters that are not text: {codes}")
    if not row.path.is_file():
        problems.append(f"{row.path}: no such file")
    return problems + _word_time_problems(row)


def _word_time_problems(row: Row) -> list[str]:
    if row.word_times is None:
        return []
    words = [time.word for time in row.word_times]
    if words != row.text.split():
        return [f"word_times say {' '.join(words)!r}, the text says {row.text!r}"]
    before = 0.0
    for word, start_s, end_s in row.word_times:
        if not before <= start_s <= end_s <= row.duration + DURATION_TOLERANCE_S:
            return [f"word_times have {word!r} from {start_s:g} to {end_s:g} s: out of order or too late"]
        before = start_s
    return []


def _tokenizer(texts: list[str], tokens: TokenConfig | Tokenizer | None) -> Tokenizer | None:
    """What transcripts are counted in; None if there is no text."""
    if isinstance(tokens, Tokenizer):
        return tokens
    return Tokenizer.train(texts, tokens or TokenConfig()) if texts else None


def training_texts(manifest: str | Path) -> list[str]:
    """The texts that tokens are made from. Rows that cannot be read are named when the split is prepared."""
    return [row.text for row in parse_manifest(manifest)[0] if row.text]


def length_problem(ids: list[int], frames: int, kind: str, subsampling: int) -> str | None:
    """Says so if CTC cannot align the tokens of a text with its frames."""
    if frames == 0:
        return "the audio is too short for one frame"
    given = subsampled(frames, subsampling)
    if given == 0:
        return f"the audio is too short: {subsampling}x subsampling leaves nothing of its {frames} frames"
    repeats = sum(a == b for a, b in pairwise(ids))
    if len(ids) + repeats <= given:  # at every start of a training, and check_feasible takes 200 us
        return None
    infeasible = check_feasible(torch.tensor([ids]), [given], [len(ids)])
    if not infeasible:
        return None
    return (
        f"the transcript is too long: its {len(ids)} tokens ({kind}) need "
        f"{infeasible[0].frames_needed} frames, the audio has {given} after {subsampling}x subsampling"
    )


def subsampled(frames: int, factor: int) -> int:
    """Frames behind the encoder's convolutions: `brctc.models.subsampled_lengths`, a layer above this one."""
    return frames if factor == 1 else max(0, (frames - 7) // factor + 1)


def read_by_file(rows: Sequence[Row]) -> Iterator[tuple[Row, Audio | AudioError]]:
    """Every row with its audio or what is wrong with it; file by file, so that each is decoded once."""
    by_file: dict[Path, list[Row]] = {}
    for row in rows:
        by_file.setdefault(row.path, []).append(row)
    for path, sharing in by_file.items():
        try:
            file = AudioFile(path)
        except AudioError as error:
            yield from ((row, error) for row in sharing)
            continue
        with file:
            for row in sorted(sharing, key=lambda row: row.start_sample or 0):
                yield row, _read_row(file, row)


def _read_row(file: AudioFile, row: Row) -> Audio | AudioError:
    try:
        samples = file.read(row.start_sample or 0, row.num_samples)
    except AudioError as error:
        return error
    seconds = len(samples) / file.sample_rate
    if abs(seconds - row.duration) > DURATION_TOLERANCE_S:
        return AudioError(f"{row.path}: {seconds:.2f} s of audio, the manifest says {row.duration:.2f} s")
    return samples, file.sample_rate


def check_speeds(speeds: Sequence[float]) -> None:
    """Whole percents, since that is how audio is resampled."""
    for speed in speeds:
        if not 0.5 <= speed <= 2 or abs(100 * speed - round(100 * speed)) > 1e-6:
            raise ValueError(f"speeds has {speed:g}, expected 0.5 to 2 in whole hundredths")


def at_speed(
    id: str, times: Sequence[WordTime] | None, speed: float
) -> tuple[str, tuple[WordTime, ...] | None]:
    """An utterance's id and word times when it is played at another speed."""
    if speed != 1:
        id = f"{id}_sp{speed:g}"
    if times is None:
        return id, None
    return id, tuple(WordTime(word, round(a / speed, 6), round(b / speed, 6)) for word, a, b in times)
