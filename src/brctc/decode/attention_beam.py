"""Joint CTC/attention beam search (Watanabe et al., 2017), over all hypotheses and utterances at once."""

import torch
from torch import Tensor

from brctc.data.batch import Padded
from brctc.decode.ctc import check_counts
from brctc.decode.ctc_prefix import CTCPrefixScorer
from brctc.decode.hypothesis import Hypothesis
from brctc.models import AttentionDecoder


@torch.inference_mode()
def attention_beam(
    decoder: AttentionDecoder,
    memory: Padded,
    ctc: Padded | None = None,
    beam: int = 10,
    ctc_weight: float = 0.5,
    length_reward: float = 0.0,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of each utterance by ctc_weight * log P_ctc + (1 - ctc_weight) *
    log P_attention + length_reward * tokens.

    `memory` is what the decoder attends to; `ctc` the logits (N, T, C) that log P_ctc is of, needed unless
    `ctc_weight` is 0.

    Every prefix in the beam is also scored as if it ended there. Neither probability grows with
    another token, so the search stops when no prefix can beat the `nbest`-th output any more: no
    heuristic is needed. No output has more tokens than the utterance has encoder frames.
    """
    check_counts(beam=beam, nbest=nbest)
    _check_weight(ctc_weight, ctc)
    classes, device = decoder.end, memory.values.device
    frames = memory.lengths.to(device)[:, None]
    prepared = decoder.start(*memory)
    scorer = CTCPrefixScorer(*ctc) if ctc is not None and ctc_weight else None
    state = scorer.start() if scorer else None
    cache = None
    tokens = torch.full((len(frames), 1), decoder.end, device=device)
    attention = torch.zeros(tokens.shape, dtype=torch.double, device=device)
    outputs: list[Tensor] = []  # of every step, (N, B): each prefix's score as an output
    choices: list[tuple[Tensor, Tensor]] = []  # of every step: which prefixes got which tokens
    best = attention.new_full((len(frames), nbest), -torch.inf)
    for length in range(int(frames.max()) + 1):
        log_probs, cache = decoder.step(prepared, tokens, cache)
        spoken = attention[:, :, None] + log_probs
        joint = (1 - ctc_weight) * spoken
        if scorer and state:
            begins, ends = scorer.scores(state)
            joint[:, :, :classes].add_(begins, alpha=ctc_weight)
            joint[:, :, decoder.end].add_(ends, alpha=ctc_weight)
        outputs.append(joint[:, :, decoder.end] + length * length_reward)
        best = torch.cat([best, outputs[-1]], 1).topk(nbest).values
        # class 0, the blank, is no token
        joint = joint[:, :, 1:classes].flatten(1)
        scores, chosen = joint.topk(min(beam, joint.shape[1]))
        # the most that a prefix can still become, if every frame left brings another reward
        bound = scores + length_reward * (frames if length_reward > 0 else length + 1)
        alive = (bound > best[:, -1:]) & (frames > length)
        if not alive.any():
            break
        parents, tokens = chosen // (classes - 1), chosen % (classes - 1) + 1
        attention = spoken[:, :, 1:classes].flatten(1).gather(1, chosen)
        attention.masked_fill_(~alive, -torch.inf)
        cache = cache.reorder(parents)
        if scorer and state:
            state = scorer.extend(state, parents, tokens)
        choices.append((parents, tokens))
    return _trace(outputs, choices, nbest)


def _check_weight(ctc_weight: float, ctc: Padded | None) -> None:
    if not 0 <= ctc_weight < 1:
        raise ValueError(f"ctc_weight is {ctc_weight}, expected 0 or more and less than 1")
    if ctc is None and ctc_weight:
        raise ValueError(f"ctc_weight is {ctc_weight}, but there is no CTC output")


def _trace(outputs: list[Tensor], choices: list[tuple[Tensor, Tensor]], nbest: int) -> list[list[Hypothesis]]:
    """The best outputs of all steps, their tokens followed back through the choices."""
    places = [(step, row) for step, scores in enumerate(outputs) for row in range(scores.shape[1])]
    best = torch.cat(outputs, 1).topk(min(nbest, len(places)))
    steps = [(parents.tolist(), tokens.tolist()) for parents, tokens in choices]
    found = []
    for n, (scores, ends) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
        hypotheses = []
        for score, end in zip(scores, ends, strict=True):
            step, row = places[end]
            tokens = []
            for parents, labels in reversed(steps[:step]):
                tokens.append(labels[n][row])
                row = parents[n][row]
            if score > -torch.inf:
                hypotheses.append(Hypothesis(tokens[::-1], score))
        found.append(hypotheses)
    return found
