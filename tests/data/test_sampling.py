"""Which examples each step sees: all of them, in batches that are never too large, and the same again after a
resume."""

import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from brctc.data import (
    Prepared,
    prepare,
    sampling,
)
from brctc.data.loading import cut_id, text_of
from brctc.data.sampling import (
    START,
    BatchConfig,
    BatchStream,
    CurriculumConfig,
    Place,
    Pool,
    Position,
    derive_seed,
)
from tests.data.epochs import LABELS, ids_of, one_epoch, padded, split_of


@pytest.fixture(scope="module")
def eighty(tmp_path_factory) -> Prepared:
    return split_of(tmp_path_factory.mktemp("eighty"), [0.1 * labels for labels in LABELS])


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Prepared:
    """400 examples in 40 shards."""
    usual, prepare.LEAST_ITEMS = prepare.LEAST_ITEMS, 10
    try:
        lengths = np.random.default_rng(0).uniform(0.1, 2, 400).round(1)
        return split_of(tmp_path_factory.mktemp("many"), lengths.tolist())
    finally:
        prepare.LEAST_ITEMS = usual


@pytest.fixture
def little_memory(monkeypatch):
    """A corpus of hundreds is as one of millions: read lazily, in rounds, from a small buffer."""
    monkeypatch.setattr(sampling, "ROUND_EXAMPLES", 90)
    monkeypatch.setattr(sampling, "BUFFER", 60)
    monkeypatch.setattr(sampling, "LEAST_PER_BUCKET", 6)
    monkeypatch.setattr(sampling, "COUNTED", 60)


def number(cut) -> int:
    return int(cut_id(cut)[1:])


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 400).map(lambda n: n / 10), min_size=1, max_size=150),
    st.integers(40, 500),
    st.integers(0, 2**31),
    st.integers(0, 100),
    st.sampled_from([2, 10, 100]),
)
def test_every_example_once_and_no_batch_too_large(tmp_path_factory, durations, seconds, seed, epoch, bucket):
    prepared = split_of(tmp_path_factory.getbasetemp() / "any", durations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "LEAST_PER_BUCKET", bucket)
        plan = one_epoch(Pool(prepared, BatchConfig(seconds=seconds), seed), epoch)
        again = one_epoch(Pool(prepared, BatchConfig(seconds=seconds), seed), epoch)
    assert sorted(number(cut) for cuts in plan for cut in cuts) == list(range(len(durations)))
    for cuts in plan:
        assert cuts
        assert padded(cuts) <= seconds + 1e-9
    assert [ids_of(cuts) for cuts in plan] == [ids_of(cuts) for cuts in again]


@pytest.mark.parametrize("seed", range(12))
def test_the_same_in_little_memory(many, little_memory, seed):
    pool = Pool(many, BatchConfig(seconds=10), seed)
    assert pool._rounds == 4
    for epoch in range(2):
        plan = one_epoch(pool, epoch)
        assert sorted(number(cut) for cuts in plan for cut in cuts) == list(range(400))
        assert max(map(padded, plan)) <= 10 + 1e-9
    assert pool._kept is None


def test_little_padding_few_batches_and_other_ones_each_epoch(tmp_path):
    lengths = np.random.default_rng(0).uniform(1, 10, 3000).round(2).tolist()
    prepared = split_of(tmp_path, lengths)
    pool = Pool(prepared, BatchConfig(seconds=60), 1)
    plans = [one_epoch(pool, epoch) for epoch in range(2)]
    for plan in plans:
        assert sum(map(padded, plan)) < 1.08 * sum(lengths)
        assert len(plan) < 1.15 * sum(lengths) / 60
        means = [np.mean([cut.duration for cut in cuts]) for cuts in plan]
        assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2  # long and short ones mixed
    together = [{frozenset(ids_of(cuts)) for cuts in plan} for plan in plans]
    assert len(together[0] & together[1]) < 10
    assert pool.batches_of_epoch() == len(plans[0])


@pytest.mark.parametrize("seed", range(8))
def test_long_ones_among_short_ones_wait_for_one_another(tmp_path, seed):
    """Each of them would be too long for the short ones that a batch has by then."""
    lengths = ([1.0] * 30 + [9.0]) * 8
    plan = one_epoch(Pool(split_of(tmp_path, lengths), BatchConfig(seconds=20), seed))
    assert sorted(number(cut) for cuts in plan for cut in cuts) == list(range(len(lengths)))
    assert max(map(padded, plan)) <= 20
    assert len(plan) < 2 * sum(lengths) / 20


def test_lengths_come_in_another_order_in_every_epoch(tmp_path):
    """Not only other examples of the same lengths."""
    lengths = np.random.default_rng(0).uniform(1, 10, 600).round(2).tolist()
    pool = Pool(split_of(tmp_path, lengths), BatchConfig(seconds=30), 0)
    orders = [[cuts[0].duration > 5 for cuts in one_epoch(pool, epoch)[:20]] for epoch in range(4)]
    assert all(5 < sum(order) < 20 for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_few_examples_share_batches_by_length_too(tmp_path):
    lengths = np.random.default_rng(0).uniform(1, 10, 500).round(2).tolist()
    plan = one_epoch(Pool(split_of(tmp_path, lengths), BatchConfig(seconds=60), 1))
    assert sum(map(padded, plan)) < 1.2 * sum(lengths)
    assert len(plan) < 1.35 * sum(lengths) / 60


def test_epochs_and_seeds_differ_and_repeat(eighty):
    def order(seed: int, epoch: int) -> list[str]:
        plan = one_epoch(Pool(eighty, BatchConfig(seconds=2), seed), epoch)
        return [id for cuts in plan for id in ids_of(cuts)]

    orders = {(seed, epoch): order(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert len({tuple(found) for found in orders.values()}) == 9
    assert orders == {key: order(*key) for key in orders}


def test_rounds_and_shards_differ_between_epochs(many, little_memory):
    pool = Pool(many, BatchConfig(seconds=10), 0)
    first = [{number(cut) // 10 for cut in pool._read(files, 0)} for files in pool._order(0)]
    second = [{number(cut) // 10 for cut in pool._read(files, 0)} for files in pool._order(1)]
    assert sorted(shard for shards in first for shard in shards) == list(range(40))
    assert sorted(shard for shards in second for shard in shards) == list(range(40))
    assert first != second


def test_an_example_longer_than_a_batch_is_named(tmp_path):
    prepared = split_of(tmp_path, [3, 70, 65])
    with pytest.raises(ValueError, match=r"u1 lasts 70\.00 s, a batch holds 60 s"):
        Pool(prepared, BatchConfig(seconds=60), 0)
    assert len(one_epoch(Pool(prepared, BatchConfig(seconds=70), 0))) >= 2


def plain(planned):
    return [(ids_of(batch.cuts), batch.after) for batch in planned]


def count(cut) -> int:
    return len(text_of(cut, "transcript"))


def stream(prepared, curriculum=None, seed=3, seconds=2.0) -> BatchStream:
    return BatchStream(
        prepared, BatchConfig(seconds=seconds), seed=seed, curriculum=curriculum, count_labels=count
    )


def take(prepared, steps, position=None, **options):
    return plain(islice(stream(prepared, **options).after(position or Position()), steps))


def test_an_epoch_is_everything_once(eighty):
    steps = stream(eighty).steps_of(1)
    batches = take(eighty, 2 * steps + 1)
    seen = [id for ids, _ in batches[:steps] for id in ids]
    assert sorted(seen) == sorted(f"u{n}" for n in range(80))
    assert batches[steps - 1][1] == Position(steps, Place(1))
    assert [id for ids, _ in batches[steps : 2 * steps] for id in ids] != seen  # another order
    assert [after.step for _, after in batches] == list(range(1, 2 * steps + 2))


SHORT = CurriculumConfig(max_labels=2, only_steps=5, share=0.25)


@pytest.mark.parametrize("curriculum", [None, SHORT])
def test_continues_from_any_position(eighty, curriculum):
    batches = take(eighty, 60, curriculum=curriculum)
    assert batches == take(eighty, 60, curriculum=curriculum)
    for start in range(0, 59, 2):
        after = Position.from_json(json.loads(json.dumps(batches[start][1].to_json())))
        assert after == batches[start][1]
        assert take(eighty, 60 - start - 1, after, curriculum=curriculum) == batches[start + 1 :]
    assert [ids for ids, _ in batches] != [ids for ids, _ in take(eighty, 60, curriculum=curriculum, seed=4)]


@pytest.mark.parametrize("curriculum", [None, CurriculumConfig(max_labels=8, only_steps=7, share=0.3)])
def test_continues_across_rounds_and_epochs_in_little_memory(many, little_memory, curriculum):
    batches = take(many, 190, curriculum=curriculum, seconds=10.0)
    places = [after.main for _, after in batches]
    assert places[-1].epoch >= 2
    assert {place.round for place in places} == {0, 1, 2, 3}
    firsts = [n for n, place in enumerate(places) if place.batch == 0]
    lasts = [n - 1 for n in firsts if n]
    for start in [*firsts, *lasts, *random.Random(0).sample(range(180), 12)]:
        rest = take(many, min(25, 189 - start), batches[start][1], curriculum=curriculum, seconds=10.0)
        assert rest == batches[start + 1 : start + 1 + len(rest)]


def test_going_on_reads_one_round_not_the_epochs_before(many, little_memory, monkeypatch):
    read, usual = [], Pool._read

    def watched(self: Pool, files: list[Path], seed: int):
        read.append(len(files))
        return usual(self, files, seed)

    monkeypatch.setattr(Pool, "_read", watched)
    next(Pool(many, BatchConfig(seconds=10), 0).batches(Place(5, 2, 3)))
    assert sorted(read) == [10, 40]  # the round; and of all the first examples, for the buckets


def labels_of(ids: list[str]) -> list[int]:
    return [LABELS[int(id[1:])] for id in ids]


def test_curriculum(eighty):
    batches = take(eighty, 205, curriculum=SHORT)
    short = [max(labels_of(ids)) <= 2 for ids, _ in batches]
    long = [min(labels_of(ids)) > 2 for ids, _ in batches]
    assert all(short[:5])
    assert all(a != b for a, b in zip(short, long, strict=True))  # never both in one batch
    assert sum(short[5:]) == 50
    assert max(sum(short[i : i + 8]) for i in range(5, 190)) <= 3  # evenly spread
    seen = Counter(id for ids, _ in batches for id in ids)
    assert set(seen) == {f"u{n}" for n in range(80)}


def test_curriculum_without_a_share_sees_everything_afterwards(eighty):
    batches = take(eighty, 60, curriculum=CurriculumConfig(max_labels=2, only_steps=5))
    assert all(max(labels_of(ids)) <= 2 for ids, _ in batches[:5])
    steps = stream(eighty).steps_of(1)
    seen = sorted(id for ids, _ in batches[5 : 5 + steps] for id in ids)
    assert seen == sorted(f"u{n}" for n in range(80))


def test_a_share_of_nothing_first(eighty):
    batches = take(eighty, 80, curriculum=CurriculumConfig(max_labels=4, share=0.5))
    short = [max(labels_of(ids)) <= 4 for ids, _ in batches]
    assert short == [n % 2 == 1 for n in range(80)]


def test_a_curriculum_of_nothing_is_no_curriculum_at_all(eighty):
    """Neither steps nor a share: everything comes as it would without one."""
    neither = take(eighty, 70, curriculum=CurriculumConfig(max_labels=2))
    assert [ids for ids, _ in neither] == [ids for ids, _ in take(eighty, 70)]


@pytest.mark.parametrize(("only_steps", "share"), [(30, None), (0, 0.5), (7, 0.25), (0, None)])
@pytest.mark.parametrize("lazily", [False, True])
def test_epochs_with_a_curriculum_last_as_long_as_they_say(
    eighty, monkeypatch, only_steps, share, lazily, tmp_path
):
    """Also where all short examples are in some shards, so that rounds are left with nothing."""
    prepared = eighty
    if lazily:
        monkeypatch.setattr(prepare, "LEAST_ITEMS", 10)
        monkeypatch.setattr(sampling, "ROUND_EXAMPLES", 20)
        monkeypatch.setattr(sampling, "BUFFER", 20)
        prepared = split_of(tmp_path, [0.1 * labels for labels in sorted(LABELS)])
    curriculum = CurriculumConfig(max_labels=2, only_steps=only_steps, share=share)
    total = stream(prepared, curriculum).steps_of(1)
    ends = [after.epoch >= 1 for _, after in take(prepared, total, curriculum=curriculum)]
    assert ends == [False] * (total - 1) + [True]
    three = stream(prepared, curriculum).steps_of(3)
    found = take(prepared, 2 * three, curriculum=curriculum)
    end = next(after.step for _, after in found if after.epoch == 3)
    assert abs(three - end) <= 0.1 * end  # other epochs have a few batches more or less


def is_short(cut) -> bool:
    return cut.duration < 0.3


def is_nothing(cut) -> bool:
    return False


def test_rounds_that_have_nothing_to_give(tmp_path, monkeypatch):
    """The epoch ends with its last batch, though empty rounds follow it; going on from there is the same."""
    monkeypatch.setattr(prepare, "LEAST_ITEMS", 10)
    monkeypatch.setattr(sampling, "ROUND_EXAMPLES", 10)
    monkeypatch.setattr(sampling, "BUFFER", 10)
    prepared = split_of(tmp_path, [0.1] * 10 + [0.5] * 70)
    pool = Pool(prepared, BatchConfig(seconds=0.6), 0, keep=is_short)
    assert pool._rounds == 8
    found = [(ids_of(cuts), after) for cuts, after in islice(pool.batches(START), 7)]
    assert [after.epoch for _, after in found] == [0, 1, 1, 2, 2, 3, 3]
    for start, (_, after) in enumerate(found[:-1]):
        cuts, place = next(pool.batches(after))
        assert (ids_of(cuts), place) == found[start + 1]


def test_nothing_to_sample_is_said(eighty):
    pool = Pool(eighty, BatchConfig(seconds=2), 0, keep=is_nothing)
    with pytest.raises(ValueError, match=rf"{eighty.directory} \(train\) has nothing to sample"):
        next(pool.batches(START))


def test_steps_of_a_large_corpus_are_estimated(many, little_memory):
    counted = len(one_epoch(Pool(many, BatchConfig(seconds=10), 0)))
    pool = Pool(many, BatchConfig(seconds=10), 0)
    seconds = sum(example.duration_s for example in many.examples)
    assert pool.batches_of_epoch() == int(np.ceil(seconds / 10))
    assert counted / 2 < pool.batches_of_epoch() <= counted  # the buffer is far too small for full batches
    assert Pool(many, BatchConfig(seconds=2.2), 0).batches_of_epoch() == int(np.ceil(seconds / 2.2))


def test_seeds_have_nothing_in_common():
    seeds = {derive_seed(seed, purpose, step) for seed in range(5) for purpose in "ab" for step in range(50)}
    assert len(seeds) == 500
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)


@pytest.mark.parametrize("options", [{}, {"seconds": 5, "tokens": 5}])
def test_a_batch_has_one_measure(options):
    with pytest.raises(
        ValidationError, match="a batch is measured in seconds or in tokens: give one of them"
    ):
        BatchConfig(**options)


@pytest.mark.parametrize(
    "options", [{"seconds": 0}, {"seconds": float("inf")}, {"tokens": 0}, {"tokens": 1.5}]
)
def test_impossible_batches(options):
    with pytest.raises(ValidationError):
        BatchConfig(**options)
