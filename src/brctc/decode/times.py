"""From the encoder frames of tokens to seconds."""

from collections.abc import Sequence
from itertools import groupby

from brctc.data.manifest import WordTime
from brctc.data.tokens import Tokenizer
from brctc.data.units import Unit, timed_units
from brctc.models.subsampling import WINDOW


def frame_clock(subsampling: int, frame_shift_s: float) -> tuple[float, float]:
    """(first_s, frame_s): when the first encoder frame begins, and how long each lasts."""
    # a frame stands for the middle of what its convolutions see
    first_s = (WINDOW - subsampling) / 2 * frame_shift_s if subsampling > 1 else 0.0
    return first_s, subsampling * frame_shift_s


def token_times(
    pieces: Sequence[str],
    frames: Sequence[int],
    last_frames: Sequence[int],
    first_s: float,
    frame_s: float,
    duration_s: float,
) -> tuple[WordTime, ...]:
    """When each token is said: from its first encoder frame to the end of its last one, in seconds; tokens
    of one frame share it evenly.

    Frame t lasts from first_s + t * frame_s for frame_s seconds. This is where the model's spikes
    are: a token's sound may begin before and end behind.
    """
    times = []
    for frame, group in groupby(range(len(frames)), key=lambda k: frames[k]):
        members = list(group)
        for rank, k in enumerate(members):
            edges = frame + rank / len(members), last_frames[k] + (rank + 1) / len(members)
            start_s, end_s = (min(max(first_s + edge * frame_s, 0.0), duration_s) for edge in edges)
            times.append(WordTime(pieces[k], start_s, end_s))
    return tuple(times)


def word_times(
    tokens: Sequence[int], times: Sequence[WordTime], tokenizer: Tokenizer, unit: Unit
) -> tuple[WordTime, ...]:
    """Each word of the text, or each of its `timed_units`, from the start of its first token to the end of
    its last one: characters of one token are predicted together."""
    owners: list[list[WordTime]] = []  # for each word, the times of the tokens that its characters are from
    before = 0  # the last token that is part of a word
    for k, (token, time) in enumerate(zip(tokens, times, strict=True)):
        piece = tokenizer.decode([token]).strip()
        if not piece:
            continue  # a space belongs to no word
        # the tokenizer alone knows where words begin, and needs no more than the two tokens to tell
        if not owners or len(tokenizer.decode(tokens[before : k + 1]).split()) > 1:
            owners.append([])
        owners[-1] += [time] * len(piece)
        before = k
    found = []
    for word, spans in zip(tokenizer.decode(tokens).split(), owners, strict=True):
        end = 0
        for part in timed_units(word, unit):
            start, end = end, end + len(part)
            found.append(WordTime(part, spans[start].start_s, spans[end - 1].end_s))
    return tuple(found)


def spike_times(words: Sequence[WordTime], frame_s: float) -> tuple[WordTime, ...]:
    """Words that end in the middle of their last frames, as latencies count them.

    The paper's drift is a difference of frame indices, and a frame in its middle waits half a chunk on
    average: from its end on, half a frame would be counted twice.
    """
    return tuple(WordTime(word, start_s, end_s - frame_s / 2) for word, start_s, end_s in words)
