"""What risks are tried on: toy lattices, a made-up utterance, and utterances of trained models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from brctc.align import check_feasible
from brctc.data import Prepared
from brctc.models import Model
from brctc.report.pictures import watched_logits
from brctc.report.spikes import token_labels

BLANK = "blank"
OTHERS = "all others"


@dataclass(frozen=True)
class Posterior:
    """Scores of one utterance. Axes: T frames, C classes, of which 0 is the blank, U tokens."""

    key: str
    """In the address of the page."""
    title: str
    note: str
    """What it is, in a sentence."""
    classes: Sequence[str]
    """(C): their names."""
    scores: Tensor
    """(T, C): logits, or log-probabilities that are taken as they are."""
    targets: Sequence[int]
    """(U)"""
    from_logits: bool = True


def appendix_b() -> Posterior:
    """Five paths, one of probability 0, as in the paper; examples/path_groups.py draws them."""
    # no softmax gives these path probabilities: the last frame does not sum to one
    scores = torch.tensor([[1 / 3, 2 / 3, 0], [0, 2 / 3, 1 / 3], [1.35, 0, 0.45]], dtype=torch.double).log()
    note = "The example of the paper's appendix B: A B in three frames, with five paths."
    return Posterior("appendix-b", "toy: A B in three frames", note, (BLANK, "A", "B"), scores, (1, 2), False)


def uniform() -> Posterior:
    """Five tokens in a hundred frames, as examples/gradients.py has them."""
    frames, tokens = 100, 5
    scores = torch.zeros(frames, tokens + 1, dtype=torch.double)
    note = "Every class is as likely as any other in every frame, as before a training."
    names = (BLANK, *map(str, range(1, tokens + 1)))
    return Posterior("uniform", "toy: an untrained model", note, names, scores, range(1, tokens + 1))


def synthetic() -> Posterior:
    """A word with a double letter, as a trained model might see it: peaks on a background of blanks."""
    letters = "helo"
    # the letter, the frame of its peak, its height above the blank in nats, its width in frames
    spikes = (("h", 9, 2.5, 1.6), ("e", 17, 0.8, 3.0), ("l", 27, 2.0, 1.5), ("l", 34, 1.0, 1.8))
    spikes += (("o", 47, 1.6, 4.0), ("o", 19, -1.2, 3.0), ("e", 46, -1.0, 3.5))  # the last two: confusions
    frame = torch.arange(1, 61, dtype=torch.double)
    scores = torch.full((len(frame), len(letters) + 1), -5.5, dtype=torch.double)
    scores[:, 0] = 0
    for letter, middle, height, width in spikes:
        bump = (height + 5.5) * torch.exp(-(((frame - middle) / width) ** 2) / 2) - 5.5
        column = letters.index(letter) + 1
        scores[:, column] = scores[:, column].maximum(bump)
    note = "Made by a formula, not recorded: peaks of a trained model, with a double letter."
    targets = [letters.index(letter) + 1 for letter in "hello"]
    return Posterior("hello", "made up: hello", note, (BLANK, *letters), scores, targets)


def of_model(name: str, model: Model, prepared: Prepared, index: int) -> Posterior:
    """Where the model can be trimmed, or of the only CTC head. Classes that the text has not are summed up:
    neither the loss nor the gradients of the others change."""
    logits = watched_logits(model, prepared, index).double()
    example, text = prepared.examples[index], model.watched_text
    assert text is not None  # watched_logits has refused it
    tokenizer = model.tokenizers[text]
    tokens = tokenizer.encode(example.texts[text])
    if not tokens:
        raise ValueError(f"{example.id} has no tokens: there is nothing to group its paths by")
    for problem in check_feasible(torch.tensor([tokens]), [len(logits)], [len(tokens)]):
        needed, given = problem.frames_needed, problem.frames_given
        raise ValueError(f"{example.id} needs {needed} frames to be aligned, and the encoder gives {given}")
    used = sorted(set(tokens))
    rest = [c for c in range(1, logits.shape[1]) if c not in used]
    log_probs = logits.log_softmax(-1)
    columns = [log_probs[:, [0, *used]]]
    names = [BLANK, *token_labels(used, tokenizer)]
    if rest:
        columns.append(log_probs[:, rest].logsumexp(-1, keepdim=True))
        names.append(OTHERS)
    targets = [used.index(token) + 1 for token in tokens]
    note = f"{example.id} of {prepared.split}, by {name}: {example.texts[text]}"
    return Posterior(
        f"{name}:{example.id}", f"{name}: {example.id}", note, names, torch.cat(columns, 1), targets
    )


def plain_scores(posterior: Posterior, digits: int = 7) -> list[list[float | None]]:
    """As JSON takes them: -inf is None."""
    return [
        [None if math.isinf(value) else float(f"{value:.{digits}g}") for value in row]
        for row in posterior.scores.tolist()
    ]
