"""The Transformer decoder: step by step as at once, and its loss by its formula."""

import pytest
import torch

from brctc.data import Padded
from tests.models.toys import CLASSES, TEXT, one_of, toy_batch, toy_system

END = CLASSES


@pytest.fixture(scope="module")
def system():
    return toy_system(attention=True)


@pytest.fixture(scope="module")
def decoder(system):
    return system.decoders["attention"]


@pytest.fixture(scope="module")
def frames(system) -> Padded:
    with torch.no_grad():
        return system.encode(toy_batch().source).final


def test_steps_as_forward(decoder, frames):
    """Any hypotheses, through reordered, duplicated and dropped beams."""
    memory = decoder.start(*frames)
    generator = torch.Generator().manual_seed(0)
    tokens, cache = torch.full((3, 1), END), None
    said = torch.zeros(3, 1, 0, dtype=torch.long)  # (N, B, U): what each hypothesis consists of
    for beam in (4, 4, 2, 3, 3):
        log_probs, cache = decoder.step(memory, tokens, cache)
        assert cache.tokens == said.shape[2] + 1
        for b in range(said.shape[1]):
            expected = decoder(*frames, said[:, b])[:, -1].log_softmax(-1)
            torch.testing.assert_close(log_probs[:, b], expected)
        parents = torch.randint(0, said.shape[1], (3, beam), generator=generator)
        tokens = torch.randint(1, CLASSES, (3, beam), generator=generator)
        said = torch.cat(
            [said.gather(1, parents[..., None].expand(-1, -1, said.shape[2])), tokens[..., None]], 2
        )
        cache = cache.reorder(parents)
    assert len({tuple(row.tolist()) for row in said.flatten(0, 1)}) > 5


def test_utterances_can_be_left_out(decoder, frames):
    memory = decoder.start(*frames)
    _, cache = decoder.step(memory, torch.full((3, 1), END))
    tokens = torch.tensor([[1, 2], [3, 1], [2, 4]])
    cache = cache.reorder(torch.zeros(3, 2, dtype=torch.long))
    whole, _ = decoder.step(memory, tokens, cache)
    for keep in (torch.tensor([2, 0]), torch.tensor([True, False, True])):
        part, _ = decoder.step(memory.select(keep), tokens[keep], cache.select(keep))
        torch.testing.assert_close(part, whole[keep])


def test_no_token_sees_a_later_one(decoder, frames):
    targets = torch.tensor([[1, 2, 3, 4]] * 3)
    changed = targets.clone()
    changed[:, 2:] = 1
    before, after = (decoder(*frames, labels) for labels in (targets, changed))
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])


def test_loss_by_its_formula(decoder, frames):
    """Cross-entropy against smoothed targets, per label, averaged over utterances."""
    targets = toy_batch().targets[TEXT]
    smoothing, classes = 0.1, CLASSES + 1
    losses = []
    for n in range(3):
        labels = one_of(targets, n).values
        logits = decoder(*one_of(frames, n), labels)[0]
        loss = 0.0
        for log_probs, gold in zip(logits.log_softmax(-1), [*labels[0].tolist(), END], strict=True):
            wanted = torch.full((classes,), smoothing / classes, dtype=torch.double)
            wanted[gold] += 1 - smoothing
            loss -= (wanted * log_probs).sum()
        losses.append(loss / labels.shape[1])
    torch.testing.assert_close(decoder.loss(frames, targets), torch.stack(losses).mean())


def test_next_tokens_that_are_right(decoder, frames):
    """Counted one by one, with the true tokens before; an empty target has an end."""
    targets = toy_batch(target_lengths=(4, 5, 0)).targets[TEXT]
    right = total = 0
    for n in range(3):
        labels = one_of(targets, n).values
        best = decoder(*one_of(frames, n), labels)[0].argmax(-1).tolist()
        pairs = list(zip(best, [*labels[0].tolist(), END], strict=True))
        right, total = right + sum(a == b for a, b in pairs), total + len(pairs)
    assert decoder.count_right(frames, targets) == (right, total)
    said = torch.stack([decoder(*frames, targets.values)[:, 0].argmax(-1)], 1)  # its own first tokens
    own = Padded(said % CLASSES, torch.ones(3, dtype=torch.long))
    assert decoder.count_right(frames, own)[0] >= int((said < END).sum())
    assert total == 4 + 5 + 0 + 3


def test_loss_of_an_empty_target(decoder, frames):
    """What is left to say is the end."""
    some = Padded(torch.tensor([[1], [2], [0]]), torch.tensor([1, 1, 0]))
    nothing = Padded(torch.zeros(3, 0, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    singles = [decoder.loss(one_of(frames, n), one_of(some, n)) for n in range(3)]
    torch.testing.assert_close(decoder.loss(frames, some), torch.stack(singles).mean())
    log_probs = decoder(*frames, nothing.values)[:, 0].log_softmax(-1)
    expected = -(0.9 * log_probs[:, END] + 0.1 * log_probs.mean(-1))
    torch.testing.assert_close(decoder.loss(frames, nothing), expected.mean())
