"""Whether a prepared split's texts fit into their frames: found once for each tokenizer, and stored."""

from contextlib import suppress

from brctc.data.checks import LabelCounts, LengthCheck, check_file_of, store_labels
from brctc.data.manifest import PreparationError, Problem
from brctc.data.split import Prepared
from brctc.files import read_json


def checked_labels(prepared: Prepared, check: LengthCheck, *, store: bool = True) -> LabelCounts:
    """What the tokenizer makes of the texts; a PreparationError names every text that is too long.

    What was found is stored beside the split, unless nothing is to be written.
    """
    path = check_file_of(prepared.directory, prepared.split, check)
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = read_json(path)
        if stored["of"] == prepared.key:
            return LabelCounts(**stored["labels"])
    labels, problems = LabelCounts(), []
    has_frames = prepared.storage.kind != "text" or check.source is not None
    for example in prepared.iterate_heard():
        text = example.texts.get(check.text)
        if text is None:
            problems.append(Problem(example.id, f"there is no {check.text}"))
            continue
        tokens = check.encode(text)
        too_many = None
        if has_frames:
            frames = check.frames(example)
            if what := check.problem(tokens, frames):
                problems.append(Problem(example.id, what))
                continue
            too_many = check.too_many(tokens, frames)
        labels.add(example.id, tokens, too_long=check.too_long == "counted" and too_many is not None)
    if problems:
        raise PreparationError(f"{prepared.directory} ({prepared.split})", problems)
    if store:
        with suppress(OSError):  # a folder that others own is checked at every start
            store_labels(path, prepared.key, labels)
    return labels
