"""Batches hold what was planned."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brctc.data import (
    Prepared,
    PreparedWriter,
    TokenConfig,
    Tokenizer,
    Utterance,
    make_batch,
    plan_batches,
)


def utterances(durations) -> list[Utterance]:
    return [Utterance(f"u{i}", "t", round(d * 100), d) for i, d in enumerate(durations)]


durations = st.lists(st.integers(1, 400).map(lambda n: n / 10), min_size=1, max_size=200)


@settings(deadline=None)
@given(durations, st.integers(40, 500), st.integers(0, 2**31), st.integers(0, 100))
def test_every_utterance_once_and_no_batch_too_large(durations, batch_s, seed, epoch):
    batches = plan_batches(utterances(durations), batch_s, seed=seed, epoch=epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(durations)))
    for batch in batches:
        assert batch
        assert len(batch) * max(durations[i] for i in batch) <= batch_s + 1e-9
    assert batches == plan_batches(utterances(durations), batch_s, seed=seed, epoch=epoch)


@settings(deadline=None)
@given(durations, st.floats(0.1, 40))
def test_short_ones_alone(durations, limit):
    wanted = [i for i, duration in enumerate(durations) if duration <= limit]
    if not wanted:
        with pytest.raises(ValueError, match="no utterances of at most"):
            plan_batches(utterances(durations), 50, seed=0, epoch=0, max_duration_s=limit)
        return
    batches = plan_batches(utterances(durations), 50, seed=0, epoch=0, max_duration_s=limit)
    assert sorted(i for batch in batches for i in batch) == wanted


def test_little_padding_few_batches_and_other_ones_each_epoch():
    lengths = np.random.default_rng(0).uniform(1, 10, 3000).round(2).tolist()
    plans = [plan_batches(utterances(lengths), 60, seed=1, epoch=epoch) for epoch in range(2)]
    for plan in plans:
        padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in plan)
        assert padded < 1.08 * sum(lengths)
        assert len(plan) < 1.15 * sum(lengths) / 60
        first = [np.mean([lengths[i] for i in batch]) for batch in plan]
        assert abs(np.corrcoef(np.arange(len(first)), first)[0, 1]) < 0.2  # long and short ones mixed
    together = [{frozenset(batch) for batch in plan} for plan in plans]
    assert len(together[0] & together[1]) < 10


def test_an_utterance_longer_than_a_batch_is_named():
    with pytest.raises(ValueError, match=r"u1 lasts 70\.00 s, a batch holds 60 s"):
        plan_batches(utterances([3, 70, 65]), 60, seed=0, epoch=0)
    with pytest.raises(ValueError, match="no utterances"):
        plan_batches([], 60, seed=0, epoch=0)


TEXTS = ["one two", "three", "two", "one one three two", "two three"] * 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> tuple[Prepared, Tokenizer]:
    directory = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    with PreparedWriter(directory, "train", feature_dim=80, frame_shift_s=0.01) as writer:
        for index, text in enumerate(TEXTS):
            writer.add(f"u{index}", text, rng.normal(size=(rng.integers(20, 300), 80)))
    return Prepared(directory, "train"), Tokenizer.train(TEXTS, TokenConfig(kind="word"))


def test_make_batch(corpus):
    prepared, tokenizer = corpus
    batch = make_batch(prepared, [3, 0, 7], tokenizer)
    assert batch.ids == ["u3", "u0", "u7"]
    assert batch.texts == [TEXTS[3], TEXTS[0], TEXTS[7]]
    frames = [prepared.utterances[i].num_frames for i in (3, 0, 7)]
    assert batch.lengths.tolist() == frames
    assert batch.features.shape == (3, max(frames), 80)
    assert batch.features.dtype == torch.float32
    for n, index in enumerate((3, 0, 7)):
        assert np.array_equal(batch.features[n, : frames[n]], prepared.features(index))
        assert not batch.features[n, frames[n] :].any()
    one, three, two = 2, 3, 4
    assert batch.targets.tolist() == [[one, one, three, two], [one, two, 0, 0], [two, 0, 0, 0]]
    assert batch.targets.dtype == batch.lengths.dtype == batch.target_lengths.dtype == torch.int64
    assert batch.target_lengths.tolist() == [4, 2, 1]
    assert batch.duration_s == pytest.approx(sum(frames) / 100)
