"""Batches hold what was sampled, the same whoever loads them."""

import gc
import multiprocessing
import pickle
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from brctc.align import frames_needed
from brctc.data import (
    AugmentConfig,
    Batch,
    FeatureConfig,
    Padded,
    Prepared,
    Row,
    RowSource,
    Storage,
    TokenConfig,
    Tokenizer,
    fbank,
    load_audio,
    pad,
    prepare_split,
)
from brctc.data.audio import change_speed
from brctc.data.loading import (
    AHEAD,
    BatchLoader,
    augment_batch,
    cut_id,
    load_ahead,
    num_frames,
    split_batch,
    text_of,
)
from brctc.data.sampling import START, BatchConfig, BatchStream, PlannedBatch, Pool, Position
from brctc.data.shards import Place
from brctc.data.subsampling import subsampled_lengths
from tests.data.sounds import noise, write
from tests.data.splits import ArrayItem, ArraySource

TEXTS = ["one two", "three", "two", "one one three two", "two three"] * 8
SHAPE = Storage("features", None, 10, 0.01)
AUGMENT = AugmentConfig(time_mask_length=10, frequency_mask_length=4, trim_tail_frames=12)


def features_of(index: int) -> np.ndarray:
    rng = np.random.default_rng(index)
    return rng.normal(size=(rng.integers(20, 300), 10)).astype(np.float16).astype(np.float32)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Prepared:
    folder = tmp_path_factory.mktemp("corpus")
    items = [
        ArrayItem(f"u{n}", {"transcript": text, "translation": text[::-1]}, features_of(n))
        for n, text in enumerate(TEXTS)
    ]
    prepare_split(ArraySource(items), folder, "train", SHAPE)
    return Prepared(folder, "train")


WORDS = Tokenizer.train(TEXTS, TokenConfig(kind="word"))
LETTERS = Tokenizer.train(TEXTS, TokenConfig())


@pytest.fixture(scope="module")
def cuts(corpus) -> list:
    """u0, u1, ..."""
    found = next(Pool(corpus, BatchConfig(seconds=1000), 0).batches(START))[0]
    return sorted(found, key=lambda cut: int(cut_id(cut)[1:]))


def stream(corpus, seconds: float = 12.0) -> BatchStream:
    return BatchStream(corpus, BatchConfig(seconds=seconds), seed=5)


def planned(corpus, count: int = 12, seconds: float = 12.0) -> list[PlannedBatch]:
    return list(islice(stream(corpus, seconds).after(Position()), count))


def equal(first: Batch, second: Batch) -> bool:
    assert first.ids == second.ids
    assert first.texts == second.texts
    assert first.targets.keys() == second.targets.keys()
    pairs = [(first.source, second.source), *((first.targets[k], second.targets[k]) for k in first.targets)]
    return all(torch.equal(a.values, b.values) and torch.equal(a.lengths, b.lengths) for a, b in pairs)


def equal_parts(first, second) -> bool:
    assert list(first) == list(second)
    return all(equal(first[part], second[part]) for part in first)


def test_pad():
    found = pad([torch.ones(2, 3), torch.ones(4, 3), torch.ones(1, 3)])
    assert found.values.shape == (3, 4, 3)
    assert found.lengths.tolist() == [2, 4, 1]
    assert found.values.sum((1, 2)).tolist() == [6, 12, 3]
    assert found.values[0, 2:].abs().sum() == 0


def test_load(corpus, cuts):
    batch = BatchLoader(corpus, {"transcript": WORDS, "translation": LETTERS}).load(
        [cuts[3], cuts[0], cuts[7]]
    )
    assert len(batch) == 3
    assert batch.ids == ["u3", "u0", "u7"]
    chosen = [TEXTS[3], TEXTS[0], TEXTS[7]]
    assert batch.texts == {"transcript": chosen, "translation": [text[::-1] for text in chosen]}
    features, lengths = batch.source
    frames = [corpus.examples[n].num_frames for n in (3, 0, 7)]
    assert lengths.tolist() == frames
    assert features.shape == (3, max(frames), 10)
    assert features.dtype == torch.float32
    for n, index in enumerate((3, 0, 7)):
        np.testing.assert_array_equal(features[n, : frames[n]], features_of(index))
        assert not features[n, frames[n] :].any()
    one, three, two = 2, 3, 4
    targets = batch.targets["transcript"]
    assert targets.values.tolist() == [[one, one, three, two], [one, two, 0, 0], [two, 0, 0, 0]]
    assert targets.values.dtype == targets.lengths.dtype == lengths.dtype == torch.int64
    assert targets.lengths.tolist() == [4, 2, 1]
    letters = batch.targets["translation"]
    assert letters.lengths.tolist() == [17, 7, 3]
    assert LETTERS.decode(letters.values[1].tolist()) == "owt eno"


def test_empty_texts_have_no_targets(tmp_path):
    items = [
        ArrayItem(f"u{n}", {"transcript": text}, np.zeros((9, 10))) for n, text in enumerate(["", "one"])
    ]
    prepare_split(ArraySource(items), tmp_path, "train", SHAPE)
    prepared = Prepared(tmp_path, "train")
    found = next(Pool(prepared, BatchConfig(seconds=9), 0).batches(START))[0]
    batch = BatchLoader(prepared, {"transcript": WORDS}).load(sorted(found, key=cut_id))
    assert batch.targets["transcript"].lengths.tolist() == [0, 1]
    assert batch.targets["transcript"].values.tolist() == [[0], [2]]
    assert batch.targets["transcript"].values.dtype == torch.int64
    alone = BatchLoader(prepared, {"transcript": WORDS}).load(sorted(found, key=cut_id)[:1])
    assert alone.targets["transcript"].values.shape == (1, 0)
    assert alone.targets["transcript"].values.dtype == torch.int64


def test_batches_move_to_devices(corpus, cuts):
    batch = BatchLoader(corpus, {"transcript": WORDS}).load(cuts[:2])
    moved = batch.to("meta")
    assert isinstance(moved.source, Padded)
    for padded in (moved.source, *moved.targets.values()):
        assert padded.values.is_meta
        assert padded.lengths.is_meta
    assert (moved.ids, moved.texts) == (batch.ids, batch.texts)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 7])
def test_parts_are_a_batch(corpus, num_parts):
    for plan in planned(corpus, 4):
        parts = [split_batch(plan.cuts, part, num_parts) for part in range(num_parts)]
        assert sorted(cut_id(cut) for part in parts for cut in part) == sorted(map(cut_id, plan.cuts))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("augment", [None, AUGMENT])
def test_parts_are_the_same_however_many_processes_load_them(corpus, augment):
    loader = BatchLoader(corpus, {"transcript": WORDS}, augment, seed=7)
    for plan in planned(corpus, 4):
        alone = loader.load_parts(plan, range(4), 4)
        assert list(alone) == [0, 1, 2, 3]
        for processes in (2, 4):
            shared = {}
            for rank in range(processes):
                shared |= loader.load_parts(plan, range(rank, 4, processes), 4)
            assert equal_parts(alone, dict(sorted(shared.items())))
        assert [id for part in alone.values() for id in part.ids] == [
            cut_id(cut) for part in range(4) for cut in plan.cuts[part::4]
        ]


def test_augmentation_depends_on_seed_step_and_part_alone(corpus):
    plan = planned(corpus, 1)[0]

    def load(seed: int = 7, step: int = 3, part: int = 0, num_parts: int = 1) -> torch.Tensor:
        loader = BatchLoader(corpus, {"transcript": WORDS}, AUGMENT, seed=seed)
        moved = PlannedBatch(plan.cuts[:8], Position(step=step))
        torch.manual_seed(seed + step)  # of no importance
        return loader.load_parts(moved, [part], num_parts)[part].source.values

    torch.testing.assert_close(load(), load(), rtol=0, atol=0)
    plain = BatchLoader(corpus, {"transcript": WORDS}).load(plan.cuts[:8]).source.values
    variants = [load(), load(seed=8), load(step=4), plain]
    for n, first in enumerate(variants):
        for second in variants[:n]:
            assert first.shape != second.shape or not torch.equal(first, second)
    # the same examples, as another part of the batch
    loader = BatchLoader(corpus, {"transcript": WORDS}, AUGMENT, seed=7)
    twice = PlannedBatch([plan.cuts[0], plan.cuts[0]], Position(step=3))
    both = loader.load_parts(twice, [0, 1], 2)
    assert both[0].ids == both[1].ids
    first, second = (part.source.values for part in both.values())
    assert first.shape != second.shape or not torch.equal(first, second)


def test_the_global_generator_is_left_alone(corpus):
    plan = planned(corpus, 1)[0]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    BatchLoader(corpus, {"transcript": WORDS}, AUGMENT, seed=7).load_parts(plan, [0], 1)
    list(load_ahead([plan], partial(_load, corpus, None), 1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("subsampling", [1, 2, 4])
def test_trim_tail_leaves_frames_for_an_alignment(subsampling):
    """As many as the longest of the texts needs, behind the subsampling."""
    generator = torch.Generator().manual_seed(0)
    labels = [[2, 2, 3], [2], [3] * 9, [2, 3] * 11, [2] * 3]
    lengths = torch.tensor([40, 30, 17 * subsampling + 9, 22 * subsampling + 6, 60])
    features = torch.randn(5, int(lengths.max()), 4, generator=generator)
    targets = {"a": pad([torch.tensor(x) for x in labels]), "b": pad([torch.tensor([2])] * 5)}
    off = AugmentConfig(num_time_masks=0, num_frequency_masks=0, max_time_warp=0, trim_tail_frames=15)
    batch = Batch(list("abcde"), Padded(features, lengths), {}, targets)
    cuts = set()
    for seed in range(300):
        found = augment_batch(batch, off, subsampling, torch.Generator().manual_seed(seed))
        left = subsampled_lengths(found.source.lengths, subsampling)
        assert (left >= frames_needed(targets["a"].values, targets["a"].lengths)).all()
        assert found.source.values.shape[1] == found.source.lengths.max()
        for n, length in enumerate(found.source.lengths.tolist()):
            assert torch.equal(found.source.values[n, :length], features[n, :length])
            assert not found.source.values[n, length:].any()
        assert found.targets is batch.targets
        cuts |= {(n, c) for n, c in enumerate((lengths - found.source.lengths).tolist())}
    assert {c for n, c in cuts if n == 4} == set(range(1, 16))  # one that has frames enough is always cut
    assert {c for n, c in cuts if n == 3} <= {0, 1, 2, 3, 4, 5, 6}


def test_a_rank_without_examples_gets_one_that_counts_nothing(corpus):
    loader = BatchLoader(corpus, {"transcript": WORDS}, AUGMENT)
    plan = PlannedBatch(planned(corpus, 1)[0].cuts[:3], Position(step=1))
    assert list(loader.load_parts(plan, range(5), 5)) == [0, 1, 2]
    assert list(loader.load_parts(plan, [2, 4], 5)) == [2]
    found = loader.load_parts(plan, [3, 4], 5)
    assert list(found) == [3]
    assert found[3].ids == [cut_id(plan.cuts[0])]
    assert split_batch(plan.cuts, 3, 5) == []  # its share of the batch


def _load(corpus: Prepared, augment: AugmentConfig | None, plan: PlannedBatch):
    loader = BatchLoader(corpus, {"transcript": WORDS}, augment, seed=7)
    return loader.load_parts(plan, range(2), 2)


@pytest.mark.parametrize("augment", [None, AUGMENT])
def test_threads_and_processes_give_the_same(corpus, augment):
    plans = planned(corpus)
    load = partial(_load, corpus, augment)
    expected = [load(plan) for plan in plans]
    corpus.features(0)  # the parent has a file open
    for workers in (0, 1, 2):
        found = list(load_ahead(iter(plans), load, workers))
        assert [plan.after for plan, _ in found] == [plan.after for plan in plans]
        assert len(found) == len(expected)
        assert all(equal_parts(parts, known) for (_, parts), known in zip(found, expected, strict=True))


def test_loaders_can_be_sent_to_processes(corpus):
    loader = BatchLoader(corpus, {"transcript": WORDS}, AUGMENT, seed=7)
    plan = planned(corpus, 1)[0]
    again, copied = pickle.loads(pickle.dumps((loader, plan)))
    assert equal_parts(again.load_parts(copied, [0], 1), loader.load_parts(plan, [0], 1))
    assert len(pickle.dumps(loader)) < 100_000


def test_batches_are_loaded_ahead():
    loaded = []

    def load(plan: int) -> dict:
        loaded.append(plan)
        return {}

    batches = load_ahead(range(100), load, 0)
    assert next(batches)[0] == 0
    deadline = time.monotonic() + 10
    while len(loaded) <= AHEAD:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.02)
    assert loaded == list(range(AHEAD + 1))  # while the first step is computed; and no further
    assert [plan for plan, _ in batches] == list(range(1, 100))


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_left_behind(corpus, workers):
    """When a stage stops in the middle of an epoch without end."""
    threads, processes = threading.active_count(), len(multiprocessing.active_children())
    batches = load_ahead(stream(corpus).after(Position()), partial(_load, corpus, None), workers)
    next(batches)
    batches.close()
    del batches
    deadline = time.monotonic() + 20
    while (threading.active_count(), len(multiprocessing.active_children())) != (threads, processes):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def no_plans():
    yield from ()


@pytest.mark.parametrize("workers", [0, 2])
def test_no_batches_at_all(corpus, workers):
    assert list(load_ahead(no_plans(), partial(_load, corpus, None), workers)) == []


class Broken:
    def __call__(self, plan: int) -> dict:
        if plan == 5:
            raise ValueError("features.000003.tar is truncated")
        return {0: plan}


def plans_that_fail():
    yield from range(5)
    raise ValueError("t7 has 30 tokens")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("plans", "message"),
    [(range(9), r"features\.000003\.tar is truncated"), (plans_that_fail, "t7 has 30 tokens")],
)
def test_errors_are_those_of_the_loader_after_what_was_good(workers, plans, message):
    found = []

    def consume() -> None:
        for plan, parts in load_ahead(plans() if callable(plans) else plans, Broken(), workers):
            assert parts == {0: plan}
            found.append(plan)

    start = time.monotonic()
    with pytest.raises(ValueError, match=message):
        consume()
    gc.collect()
    assert time.monotonic() - start < 4  # nobody waits for processes that have nothing more to do
    assert found == [0, 1, 2, 3, 4] or (workers and callable(plans))  # DataLoader asks for plans ahead


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_data_are_named_also_from_another_process(tmp_path, workers):
    items = [ArrayItem(f"u{n}", {"transcript": "one"}, features_of(n)) for n in range(8)]
    prepare_split(ArraySource(items), tmp_path, "train", SHAPE)
    prepared = Prepared(tmp_path, "train")
    (tar,) = tmp_path.glob("train-*/*.tar")
    tar.write_bytes(tar.read_bytes()[:9000])
    batches = load_ahead(planned(prepared, 3), partial(_load, prepared, None), workers)
    with pytest.raises(
        ValueError, match=r"cuts\.000000\.jsonl\.gz at byte \d+ cannot be read: .* is truncated"
    ):
        list(batches)


def test_another_number_of_frames_than_was_written_is_noticed(corpus, cuts):
    cut = pickle.loads(pickle.dumps(cuts[4]))
    cut.custom["num_frames"] += 1
    frames = corpus.examples[4].num_frames
    with pytest.raises(ValueError, match=rf"u4 has {frames} frames, {frames + 1} were written"):
        BatchLoader(corpus, {"transcript": WORDS}).load([cut])


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> tuple[Prepared, Path]:
    folder = tmp_path_factory.mktemp("recordings")
    paths = [write(folder / f"{n}.wav", noise(0.3 + 0.1 * n, n)) for n in range(6)]
    rows = [Row(f"u{n}", "one", path, 0.3 + 0.1 * n) for n, path in enumerate(paths)]
    storage = Storage.of_audio(FeatureConfig(num_bins=10), "audio", (0.9, 1.0, 1.1))
    prepare_split(RowSource(rows), folder / "out", "train", storage)
    return Prepared(folder / "out", "train"), folder


def test_audio_is_played_at_its_speeds_when_it_is_read(recordings):
    prepared, folder = recordings
    found = next(Pool(prepared, BatchConfig(seconds=100), 0).batches(START))[0]
    batch = BatchLoader(prepared, {"transcript": WORDS}).load(found)
    assert sorted(batch.ids) == sorted(f"u{n}{end}" for n in range(6) for end in ("", "_sp0.9", "_sp1.1"))
    features, lengths = batch.source
    for n, (id, cut) in enumerate(zip(batch.ids, found, strict=True)):
        name, _, end = id.partition("_sp")
        samples = load_audio(folder / f"{name[1:]}.wav", 16000)
        expected = fbank(change_speed(samples, float(end or 1)), FeatureConfig(num_bins=10))
        assert lengths[n] == len(expected)
        np.testing.assert_allclose(features[n, : lengths[n]], expected, atol=1e-5)
        assert abs(num_frames(cut) - len(expected)) <= 1
        assert text_of(cut, "transcript") == "one"


def test_features_stored_at_speeds_are_the_same_examples(recordings, tmp_path):
    """Whether copies are stored or made: ids, texts and all but the same features."""
    prepared, folder = recordings
    rows = [Row(f"u{n}", "one", folder / f"{n}.wav", 0.3 + 0.1 * n) for n in range(6)]
    storage = Storage.of_audio(FeatureConfig(num_bins=10), "features", (0.9, 1.0, 1.1))
    prepare_split(RowSource(rows), tmp_path, "train", storage)
    stored = Prepared(tmp_path, "train")
    loaded = []
    for split in (prepared, stored):
        found = next(Pool(split, BatchConfig(seconds=100), 0).batches(START))[0]
        loaded.append(BatchLoader(split, {"transcript": WORDS}).load(sorted(found, key=cut_id)))
    assert loaded[0].ids == loaded[1].ids
    assert torch.equal(loaded[0].source.lengths, loaded[1].source.lengths)
    torch.testing.assert_close(loaded[0].source.values, loaded[1].source.values, rtol=0, atol=0.02)


def test_the_source_of_text_pairs_is_tokens(tmp_path):
    rows = [Row(f"t{n}", text, translation=text[::-1]) for n, text in enumerate(TEXTS[:5])]
    prepare_split(RowSource(rows), tmp_path, "train", Storage("text"))
    prepared = Prepared(tmp_path, "train")
    found = next(Pool(prepared, BatchConfig(tokens=99), 0, tokenizer=WORDS).batches(START))[0]
    found = sorted(found, key=cut_id)
    batch = BatchLoader(prepared, {"source": WORDS, "translation": LETTERS}).load(found)
    assert batch.ids == [f"t{n}" for n in range(5)]
    assert batch.source is batch.targets["source"]
    assert batch.source.lengths.tolist() == [2, 1, 1, 4, 2]
    assert batch.source.values.dtype == torch.int64
    assert WORDS.decode(batch.source.values[3].tolist()) == "one one three two"
    assert LETTERS.decode(batch.targets["translation"].values[0].tolist()) == "owt eno"
    assert batch.texts["translation"] == [text[::-1] for text in TEXTS[:5]]
    assert [num_frames(cut) for cut in found] == [2, 1, 1, 4, 2]
    plan = PlannedBatch(found, Position(step=1))
    for workers in (0, 1):
        load = partial(BatchLoader(prepared, {"source": WORDS}).load_parts, parts=[0], num_parts=1)
        ((_, parts),) = load_ahead([plan], load, workers)
        assert equal(parts[0], BatchLoader(prepared, {"source": WORDS}).load(found))


def test_a_place_in_the_data_is_enough(corpus, cuts):
    for n in (0, 13, 39):
        custom = cuts[n].custom
        found = corpus.load(str(cuts[n].shard_origin), Place(custom["offset"], custom["size"]))
        np.testing.assert_array_equal(found, features_of(n))
