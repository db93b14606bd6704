"""Sampling of stored audio at its speeds, and of texts."""

import random
import shutil
from itertools import islice

import pytest

from brctc.data import (
    FeatureConfig,
    Prepared,
    Row,
    RowSource,
    Storage,
    TokenConfig,
    Tokenizer,
    prepare,
    prepare_split,
    sampling,
)
from brctc.data.loading import cut_id, text_of
from brctc.data.sampling import (
    START,
    BatchConfig,
    BatchStream,
    CurriculumConfig,
    Pool,
    Position,
)
from tests.data.epochs import LABELS, ids_of, one_epoch, padded, split_of
from tests.data.sounds import noise, write


@pytest.fixture(scope="module")
def eighty(tmp_path_factory) -> Prepared:
    return split_of(tmp_path_factory.mktemp("eighty"), [0.1 * labels for labels in LABELS])


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> Prepared:
    """Audio that is heard at three speeds, in six shards."""
    folder = tmp_path_factory.mktemp("recordings")
    rows = []
    for n in range(30):
        path = write(folder / f"{n}.wav", noise(0.2 + 0.02 * n, n))
        rows.append(Row(f"u{n}", "x" * (1 + n % 5), path, 0.2 + 0.02 * n))
    usual, prepare.LEAST_ITEMS = prepare.LEAST_ITEMS, 5
    try:
        storage = Storage.of_audio(FeatureConfig(num_bins=8), "audio", (0.9, 1.0, 1.1))
        prepare_split(RowSource(rows), folder / "out", "train", storage)
    finally:
        prepare.LEAST_ITEMS = usual
    return Prepared(folder / "out", "train")


@pytest.mark.parametrize("lazily", [False, True])
def test_stored_audio_is_heard_at_each_speed_once(recordings, monkeypatch, lazily):
    if lazily:
        monkeypatch.setattr(sampling, "ROUND_EXAMPLES", 30)
        monkeypatch.setattr(sampling, "BUFFER", 20)
    pool = Pool(recordings, BatchConfig(seconds=4), 0)
    assert pool._rounds == (3 if lazily else 1)
    expected = sorted(f"u{n}{end}" for n in range(30) for end in ("", "_sp0.9", "_sp1.1"))
    orders = []
    for epoch in range(2):
        plan = one_epoch(pool, epoch)
        orders.append([id for cuts in plan for id in ids_of(cuts)])
        assert sorted(orders[-1]) == expected
        assert max(map(padded, plan)) <= 4
        for cuts in plan:
            for cut in cuts:
                speed = cut.custom.get("speed", 1.0)
                stored = recordings.examples[int(cut_id(cut).partition("_")[0][1:])]
                assert cut.duration == pytest.approx(stored.duration_s / speed, abs=0.01)
    assert orders[0] != orders[1]
    assert pool._total_s() == pytest.approx(recordings.duration_s * (1 / 0.9 + 1 + 1 / 1.1))


def test_the_slowest_copy_must_fit(recordings):
    assert recordings.longest == ("u29", 0.78)
    Pool(recordings, BatchConfig(seconds=0.87), 0)
    with pytest.raises(ValueError, match=r"u29 lasts 0\.87 s, a batch holds 0\.8 s"):
        Pool(recordings, BatchConfig(seconds=0.8), 0)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> tuple[Prepared, Tokenizer]:
    folder, rng = tmp_path_factory.mktemp("pairs"), random.Random(0)
    rows = [
        Row(
            f"t{n}",
            " ".join(rng.choices(["ein", "zwei", "drei"], k=rng.randint(1, 20))),
            translation=f"x {n}",
        )
        for n in range(300)
    ]
    usual, prepare.LEAST_ITEMS = prepare.LEAST_ITEMS, 30
    try:
        prepare_split(RowSource(rows), folder, "train", Storage("text"))
    finally:
        prepare.LEAST_ITEMS = usual
    return Prepared(folder, "train"), Tokenizer.train(["ein zwei drei"], TokenConfig(kind="word"))


@pytest.mark.parametrize("lazily", [False, True])
def test_texts_are_measured_in_tokens(pairs, monkeypatch, lazily):
    prepared, tokenizer = pairs
    monkeypatch.setattr(sampling, "LEAST_PER_BUCKET", 10)
    if lazily:
        monkeypatch.setattr(sampling, "ROUND_EXAMPLES", 100)
        monkeypatch.setattr(sampling, "BUFFER", 80)
    pool = Pool(prepared, BatchConfig(tokens=100), 0, tokenizer=tokenizer)
    plan = one_epoch(pool)
    assert sorted(id for cuts in plan for id in ids_of(cuts)) == sorted(f"t{n}" for n in range(300))
    sizes = [[len(text_of(cut, "source").split()) for cut in cuts] for cuts in plan]
    assert max(len(counts) * max(counts) for counts in sizes) <= 100
    share = 1.5 if lazily else 1.15
    assert sum(len(counts) * max(counts) for counts in sizes) < share * sum(map(sum, sizes))
    assert pool.batches_of_epoch() == len(plan)
    texts = {
        cut_id(cut): (text_of(cut, "source"), text_of(cut, "translation")) for cuts in plan for cut in cuts
    }
    for example in prepared.examples:
        assert texts[example.id] == (example.texts["source"], example.texts["translation"])


def test_a_text_longer_than_a_batch_is_named(pairs, monkeypatch, tmp_path):
    prepared, tokenizer = pairs
    with pytest.raises(ValueError, match=r"t\d+ has 20 tokens, a batch holds 19"):
        Pool(prepared, BatchConfig(tokens=19), 0, tokenizer=tokenizer)
    rows = [Row(f"s{n}", "ein zwei", translation="x") for n in range(50)]
    rows.insert(40, Row("long", "ein " * 30, translation="x"))
    prepare_split(RowSource(rows), tmp_path, "train", Storage("text"))
    monkeypatch.setattr(sampling, "BUFFER", 10)  # it is not among the first
    pool = Pool(Prepared(tmp_path, "train"), BatchConfig(tokens=29), 0, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="long has 30 tokens, a batch holds 29"):
        one_epoch(pool)


def test_text_pairs_with_a_curriculum(pairs):
    prepared, tokenizer = pairs
    curriculum = CurriculumConfig(max_labels=5, only_steps=3, share=0.5)
    batches = BatchStream(
        prepared,
        BatchConfig(tokens=60),
        seed=0,
        curriculum=curriculum,
        count_labels=lambda cut: len(cut.source.text.split()),
        tokenizer=tokenizer,
    )
    found = [
        [len(cut.source.text.split()) for cut in batch.cuts]
        for batch in islice(batches.after(Position()), 20)
    ]
    assert [max(counts) <= 5 for counts in found] == [n < 3 or n % 2 == 1 for n in range(20)]


@pytest.mark.parametrize("kind", ["cuts", "pairs"])
def test_a_damaged_list_is_named(eighty, pairs, tmp_path, kind):
    """lhotse reads it, and would not say which."""
    source = eighty if kind == "cuts" else pairs[0]
    shutil.copytree(source.directory, tmp_path / "copy")
    prepared = Prepared(tmp_path / "copy", "train")
    path = prepared.list_files()[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)
    batch = BatchConfig(seconds=2) if kind == "cuts" else BatchConfig(tokens=100)
    with pytest.raises(ValueError, match=rf"{path.name} is damaged or foreign"):
        next(Pool(prepared, batch, 0, tokenizer=pairs[1]).batches(START))
