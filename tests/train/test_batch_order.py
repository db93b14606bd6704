"""Which batch comes at which step."""

from itertools import islice

import pytest

from brctc.data import Utterance
from brctc.train.batch_order import BatchStream, Position, derive_seed
from brctc.train.config import CurriculumConfig, Stage, WeightConfig

LABELS = [1 + i % 8 for i in range(80)]
UTTERANCES = [Utterance(f"u{i}", "x" * n, 10 * n, 0.1 * n) for i, n in enumerate(LABELS)]


def stream(curriculum=None, seed=3):
    return BatchStream(UTTERANCES, LABELS, 2.0, seed=seed, curriculum=curriculum)


def take(count, position=None, **options):
    return list(islice(stream(**options).after(position or Position()), count))


def test_an_epoch_is_everything_once():
    steps = stream().steps_of(1)
    batches = take(2 * steps + 1)
    seen = [i for batch in batches[:steps] for i in batch.indices]
    assert sorted(seen) == list(range(80))
    assert batches[steps - 1].after == Position(step=steps, epoch=1)
    assert [i for batch in batches[steps : 2 * steps] for i in batch.indices] != seen  # another order


@pytest.mark.parametrize("curriculum", [None, CurriculumConfig(max_labels=2, only_steps=5, share=0.25)])
def test_continues_from_any_position(curriculum):
    batches = take(60, curriculum=curriculum)
    assert batches == take(60, curriculum=curriculum)
    for start in (0, 4, 5, 6, 17, 33):
        rest = take(60 - start - 1, batches[start].after, curriculum=curriculum)
        assert rest == batches[start + 1 :]
    assert batches != take(60, curriculum=curriculum, seed=4)


def test_curriculum():
    batches = take(205, curriculum=CurriculumConfig(max_labels=2, only_steps=5, share=0.25))
    short = [all(LABELS[i] <= 2 for i in batch.indices) for batch in batches]
    long = [all(LABELS[i] > 2 for i in batch.indices) for batch in batches]
    assert all(short[:5])
    assert all(a != b for a, b in zip(short, long, strict=True))  # never both in one batch
    assert sum(short[5:]) == 50
    assert max(sum(short[i : i + 8]) for i in range(5, 190)) <= 3  # evenly spread


def test_curriculum_without_a_share_sees_everything_afterwards():
    batches = take(50, curriculum=CurriculumConfig(max_labels=2, only_steps=5))
    assert all(LABELS[i] <= 2 for batch in batches[:5] for i in batch.indices)
    steps = stream().steps_of(1)
    assert sorted(i for batch in batches[5 : 5 + steps] for i in batch.indices) == list(range(80))


@pytest.mark.parametrize(("only_steps", "share"), [(30, None), (0, 0.5), (7, 0.25)])
def test_epochs_with_a_curriculum_last_as_long_as_they_say(only_steps, share):
    curriculum = CurriculumConfig(max_labels=2, only_steps=only_steps, share=share)
    total = stream(curriculum).steps_of(2)
    ends = [batch.after.epoch >= 2 for batch in take(total, curriculum=curriculum)]
    assert ends == [False] * (total - 1) + [True]


@pytest.mark.parametrize(("most", "share"), [(0, 0.5), (8, 0.5)])
def test_a_curriculum_that_parts_nothing(most, share):
    curriculum = CurriculumConfig.model_construct(max_labels=most, only_steps=3, share=share)
    with pytest.raises(ValueError, match=r"curriculum.max_labels is .: .* have 1 to 8 labels"):
        stream(curriculum)


def test_seeds_have_nothing_in_common():
    seeds = {derive_seed(seed, purpose, step) for seed in range(5) for purpose in "ab" for step in range(50)}
    assert len(seeds) == 500
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)


def test_epochs_that_would_never_end():
    only_short = CurriculumConfig(max_labels=2, share=1)
    with pytest.raises(ValueError, match="so that no epoch would end: say steps, not epochs"):
        Stage(epochs=2, weights=WeightConfig(ctc=1), curriculum=only_short)
    assert Stage(steps=2, weights=WeightConfig(ctc=1), curriculum=only_short).steps == 2
