"""Batches hold what was sampled, the same whoever loads them."""

import pickle
from functools import partial
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
    extract_features,
    load_audio,
    pad,
    prepare_split,
)
from brctc.data.audio import change_speed
from brctc.data.loading import (
    BatchLoader,
    augment_batch,
    cut_id,
    load_ahead,
    num_frames,
    split_batch,
    text_of,
)
from brctc.data.sampling import START, BatchConfig, PlannedBatch, Pool, Position
from brctc.data.shards import Place
from brctc.data.subsampling import subsampled_lengths
from tests.data.loaded import (
    AUGMENT,
    SHAPE,
    TEXTS,
    WORDS,
    equal,
    equal_parts,
    features_of,
    load_halves,
    planned,
)
from tests.data.sounds import noise, write
from tests.data.splits import ArrayItem, ArraySource


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Prepared:
    folder = tmp_path_factory.mktemp("corpus")
    items = [
        ArrayItem(f"u{n}", {"transcript": text, "translation": text[::-1]}, features_of(n))
        for n, text in enumerate(TEXTS)
    ]
    prepare_split(ArraySource(items), folder, "train", SHAPE)
    return Prepared(folder, "train")


LETTERS = Tokenizer.train(TEXTS, TokenConfig())


@pytest.fixture(scope="module")
def cuts(corpus) -> list:
    """u0, u1, ..."""
    found = next(Pool(corpus, BatchConfig(seconds=1000), 0).batches(START))[0]
    return sorted(found, key=lambda cut: int(cut_id(cut)[1:]))


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
    list(load_ahead([plan], partial(load_halves, corpus, None), 1))
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
        expected = extract_features(change_speed(samples, float(end or 1)), FeatureConfig(num_bins=10))
        assert lengths[n] == len(expected)
        np.testing.assert_allclose(features[n, : lengths[n]], expected, atol=1e-5)
        assert abs(num_frames(cut) - len(expected)) <= 1
        assert text_of(cut, "transcript") == "one"


def test_another_number_of_frames_is_noticed_at_every_speed(recordings):
    prepared, _ = recordings
    loader = BatchLoader(prepared, {"transcript": WORDS})
    for cut in next(Pool(prepared, BatchConfig(seconds=100), 0).batches(START))[0]:
        wrong = pickle.loads(pickle.dumps(cut))
        wrong.custom["num_frames"] += 5
        with pytest.raises(ValueError, match=rf"{cut.id} has \d+ frames, {wrong.custom['num_frames']} were"):
            loader.load([wrong])


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
