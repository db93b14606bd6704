"""Transducer searches: one call of the joint network per step, and no more steps than frames and tokens."""

import itertools

import numpy as np
import torch
from torch import Tensor

from brctc.data.batch import Padded
from brctc.decode.ctc import check_counts
from brctc.decode.hypothesis import Hypothesis, PrefixTree
from brctc.models import Transducer
from brctc.models.transducer import BLANK

GREEDY_BLOCK = 16  # frames looked at in one call: most of them are blank


@torch.inference_mode()
def transducer_greedy(transducer: Transducer, memory: Padded, max_symbols: int = 20) -> list[Hypothesis]:
    """The best class at every step. The score is the log probability of the one path taken.

    No more than `max_symbols` * t tokens are said in the first t frames, so every search ends.
    """
    check_counts(max_symbols=max_symbols)
    return [_greedy(transducer, frames, max_symbols) for frames in _projected(transducer, memory)]


@torch.inference_mode()
def transducer_beam(
    transducer: Transducer, memory: Padded, beam: int = 10, nbest: int = 1, max_symbols: int = 20
) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of each utterance, each summed over its paths.

    No more than `max_symbols` * t tokens are said in the first t frames, so every search ends.

    Alignment-length synchronous search (Saon et al., 2020): at step i every hypothesis has used up
    i = frames + tokens. Chosen over the frame-synchronous search because
    - a step is one call of the joint network for the whole beam, and there are T + U steps; inside
      a frame-synchronous frame the number of calls depends on what the model finds there;
    - a prefix is at one place of the lattice at a time, so paths of equal prefixes meet and are
      added exactly, and with a full beam the search is the exact sum over all paths;
    - an output y is complete at step T + |y| and at no other, so when an output is as probable as
      all that is left in the beam together, nothing can beat it, and the search is over.
    """
    check_counts(beam=beam, nbest=nbest, max_symbols=max_symbols)
    return [_beam(transducer, frames, beam, nbest, max_symbols) for frames in _projected(transducer, memory)]


def _projected(transducer: Transducer, memory: Padded) -> list[Tensor]:
    """Each utterance's frames as the joint network adds them, (T, joint_dim)."""
    frames = transducer.project(memory.values)
    return [frames[n, :length] for n, length in enumerate(memory.lengths.tolist())]


def _greedy(transducer: Transducer, frames: Tensor, max_symbols: int) -> Hypothesis:
    tokens: list[int] = []
    emitted: list[int] = []
    row = transducer.first_row()
    score, frame = 0.0, 0
    while frame < len(frames):
        prediction = row[:, : transducer.joint_dim]
        block = transducer.joint_projected(frames[frame : frame + GREEDY_BLOCK], prediction)
        best = block.max(-1)
        classes = best.indices.tolist()
        blanks = next((i for i, c in enumerate(classes) if c != BLANK), len(classes))
        score += best.values[: blanks + 1].sum(dtype=torch.double).item()
        frame += blanks
        if blanks == len(classes):
            continue
        tokens.append(classes[blanks])
        emitted.append(frame)
        row = transducer.follow(row, best.indices[blanks : blanks + 1])
        if len(tokens) == max_symbols * (frame + 1):  # the blank is all that is left
            forced = transducer.joint_projected(frames[frame], row[:, : transducer.joint_dim])
            score += forced[0, BLANK].item()
            frame += 1
    return Hypothesis(tokens, score, emitted, emitted)


class _PredictionTable:
    """The row of each prefix of a tree; every prefix is run once."""

    def __init__(self, transducer: Transducer) -> None:
        self.transducer = transducer
        self.rows = transducer.first_row()
        self.size = 1

    def predictions(self, prefixes: np.ndarray) -> Tensor:
        """(prefixes, joint_dim)"""
        index = torch.from_numpy(prefixes).to(self.rows.device)
        return self.rows[:, : self.transducer.joint_dim].index_select(0, index)

    def add(self, parents: list[int], tokens: list[int]) -> None:
        """The tree's next prefixes, by their parents and last tokens."""
        index, labels = torch.tensor([parents, tokens], device=self.rows.device)
        new = self.transducer.follow(self.rows.index_select(0, index), labels)
        end = self.size + len(new)
        if end > len(self.rows):
            rows = new.new_empty(2 * end, new.shape[1])
            rows[: self.size] = self.rows[: self.size]
            self.rows = rows
        self.rows[self.size : end] = new
        self.size = end


def _beam(
    transducer: Transducer, frames: Tensor, beam: int, nbest: int, max_symbols: int
) -> list[Hypothesis]:
    classes, last_frame = transducer.classes, len(frames) - 1
    tree, table = PrefixTree(), _PredictionTable(transducer)
    # of each hypothesis: its prefix, the log probability of all its paths, its number of tokens
    prefixes, total, length = np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.int64)
    outputs: list[tuple[float, int]] = []
    for step in itertools.count():
        frame = step - length
        here = frames.index_select(0, torch.from_numpy(frame).to(frames.device))
        log_probs = transducer.joint_projected(here, table.predictions(prefixes))
        scores = total[:, None] + log_probs.cpu().numpy()
        scores[length >= max_symbols * (frame + 1), BLANK + 1 :] = -np.inf
        # what a blank makes of a prefix, its last token makes of the prefix before it: their paths meet
        index = {prefix: i for i, prefix in enumerate(prefixes.tolist())}
        meeting = [
            (i, index[tree.parent[p]], tree.token[p]) for p, i in index.items() if tree.parent[p] in index
        ]
        if meeting:
            target, source, token = np.array(meeting).T
            scores[target, BLANK] = np.logaddexp(scores[target, BLANK], scores[source, token])
            scores[source, token] = -np.inf
        for i in (frame == last_frame).nonzero()[0].tolist():
            outputs.append((float(scores[i, BLANK]), int(prefixes[i])))
            scores[i, BLANK] = -np.inf
        flat = scores.ravel()
        chosen = np.argpartition(flat, -beam)[-beam:] if len(flat) > beam else np.arange(len(flat))
        chosen = chosen[flat[chosen] > -np.inf]
        total = flat[chosen]
        left = np.logaddexp.reduce(total)
        if left == -np.inf or (len(outputs) >= nbest and left <= sorted(outputs)[-nbest][0]):
            break
        source, token = np.divmod(chosen, classes)
        length = length[source] + (token != BLANK)
        sources = zip(prefixes[source].tolist(), token.tolist(), strict=True)
        prefixes = np.array([tree.child(prefix, label) if label else prefix for prefix, label in sources])
        if len(tree.parent) > table.size:
            new = slice(table.size, None)
            table.add(tree.parent[new], tree.token[new])
    outputs.sort(reverse=True)
    return [Hypothesis(tree.tokens(prefix), score) for score, prefix in outputs[:nbest]]


@torch.inference_mode()
def transducer_frames(transducer: Transducer, memory: Padded, tokens: list[list[int]]) -> list[list[int]]:
    """The frame of each token on the most probable path that says the tokens of an utterance."""
    found = []
    for frames, labels in zip(_projected(transducer, memory), tokens, strict=True):
        targets = torch.tensor([labels], dtype=torch.long, device=frames.device)
        joint = transducer.joint_projected(frames[:, None], transducer.predictions(targets)[0]).double()
        blank = joint[:, :, BLANK].cpu().numpy()
        label = joint[:, :-1].gather(2, targets.expand(len(frames), -1)[:, :, None])[:, :, 0].cpu().numpy()
        found.append(_best_path(blank, label))
    return found


def _best_path(blank: np.ndarray, label: np.ndarray) -> list[int]:
    """blank: (T, U + 1), label: (T, U) log probabilities. The frame of each label on the best path."""
    # log probability of the blanks before frame t that a path with u labels has taken
    blanks = np.cumsum(np.pad(blank[:-1], ((1, 0), (0, 0))), axis=0)
    frame, latest = np.arange(len(blank)), []
    score = blanks[:, 0]
    for u in range(label.shape[1]):
        entered = score + label[:, u] - blanks[:, u + 1]
        best = np.maximum.accumulate(entered)
        latest.append(np.maximum.accumulate(np.where(entered == best, frame, 0)))
        score = best + blanks[:, u + 1]
    frames, t = [], len(blank) - 1
    for entered_at in reversed(latest):
        t = int(entered_at[t])
        frames.append(t)
    return frames[::-1]
