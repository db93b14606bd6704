"""A checkpoint is whole or refused; what dies while writing leaves the ones before it alone."""

import json
import os
import random
import time

import pytest
import torch

from brctc.files import remove_unfinished, write_text
from brctc.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    average_weights,
    checkpoint_path,
    choose_checkpoints,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    load_optimiser,
    optimiser_tensors,
    prune_checkpoints,
    save_checkpoint,
    set_aside_damaged,
)
from tests.train.children import start_writing


def example(value=1.0, regular=True, **state):
    return Checkpoint(
        {"weight": torch.full((3, 4), value), "count": torch.tensor(int(value))},
        {"weight/step": torch.tensor(2.0)},
        {"regular": regular, **state},
    )


@pytest.fixture
def saved(tmp_path):
    """Two checkpoints; the path of the newer one."""
    for step in (10, 20):
        save_checkpoint(checkpoint_path(tmp_path, 0, step), example(step, step=step))
    return checkpoint_path(tmp_path, 0, 20)


def test_round_trip(saved):
    loaded = load_checkpoint(saved)
    assert torch.equal(loaded.model["weight"], torch.full((3, 4), 20.0))
    assert loaded.optimiser["weight/step"] == 2
    assert loaded.state == {"regular": True, "step": 20}


def test_order_is_by_number(tmp_path):
    for stage, step in ((1, 5), (0, 12_345_678), (0, 900)):
        save_checkpoint(checkpoint_path(tmp_path, stage, step), example())
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["stage-0-step-0000900", "stage-0-step-12345678", "stage-1-step-0000005"]


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def change_state(path):
    path.write_text(path.read_text().replace('"step": 20', '"step": 21'))


DAMAGE = [
    ("model.safetensors", truncate, "corrupt: model.safetensors is not what was saved"),
    ("model.safetensors", flip, "corrupt: model.safetensors is not what was saved"),
    ("optimiser.safetensors", flip, "corrupt: optimiser.safetensors is not what was saved"),
    ("optimiser.safetensors", os.unlink, "incomplete: optimiser.safetensors is missing"),
    ("state.json", truncate, "corrupt: state.json cannot be read"),
    ("state.json", change_state, "corrupt: state.json is not what was saved"),
    ("state.json", os.unlink, "not a brctc checkpoint: it has no state.json"),
]


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGE)
def test_damage_is_refused(saved, file, damage, message):
    damage(saved / file)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(saved)
    assert saved.name in str(caught.value)
    with pytest.raises(CheckpointError, match=message):
        latest_checkpoint(saved.parent)
    assert [path.name for path in set_aside_damaged(saved.parent)] == [f"damaged-{saved.name}"]
    found = latest_checkpoint(saved.parent)
    assert found is not None
    assert found[1].state["step"] == 10
    assert set_aside_damaged(saved.parent) == []


def test_every_byte_counts(tmp_path):
    """Whatever single byte changes, nothing loads as if it were right."""
    path = tmp_path / "stage-0-step-0000001"
    save_checkpoint(path, example(step=1))
    before = load_checkpoint(path)
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for i in range(0, len(content), 7):
            file.write_bytes(content[:i] + bytes([content[i] ^ 4]) + content[i + 1 :])
            try:
                state = load_checkpoint(path).state
            except CheckpointError:
                continue
            assert state == before.state, (file.name, i)  # white space between JSON's parts
        file.write_bytes(content)


def test_foreign_directories(tmp_path):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"no state.json \(found: model.pt\)"):
        load_checkpoint(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps({"format": "someone else's"}))
    with pytest.raises(CheckpointError, match=r"says .someone else.s"):
        load_checkpoint(tmp_path)
    (tmp_path / "state.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="says None"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "missing")


def test_nothing_usable(saved):
    for path in list_checkpoints(saved.parent):
        truncate(path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be used: .*0020.*0010"):
        set_aside_damaged(saved.parent)
    assert len(list_checkpoints(saved.parent)) == 2  # nothing was touched
    assert latest_checkpoint(saved.parent / "empty") is None


def test_an_older_one_is_set_aside_too(saved):
    oldest, newest = list_checkpoints(saved.parent)
    truncate(oldest / "model.safetensors")
    assert [path.name for path in set_aside_damaged(saved.parent)] == [f"damaged-{oldest.name}"]
    assert list_checkpoints(saved.parent) == [newest]


def test_pruning_keeps_regular_ones(tmp_path):
    for step, regular in ((1, True), (2, True), (3, False), (4, True), (5, True), (6, False)):
        save_checkpoint(checkpoint_path(tmp_path, 0, step), example(regular=regular))
    prune_checkpoints(tmp_path, keep=2)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["4", "5", "6"]
    prune_checkpoints(tmp_path, keep=1)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["5", "6"]


def measured(folder, stage, step, regular=True, **dev):
    path = checkpoint_path(folder, stage, step)
    save_checkpoint(path, example(regular=regular, stage=stage, dev=dev))
    return path


def steps_of(paths):
    return [int(path.name[-7:]) for path in paths]


@pytest.mark.parametrize(("name", "sign"), [("dev_accuracy", 1), ("dev_error", -1), ("dev_loss", -1)])
def test_the_best_ones(tmp_path, name, sign):
    """More accuracy, fewer errors or less loss; of equal ones, the later; none that a signal wrote."""
    values = {1: 0.5, 2: 0.9, 3: 0.2, 4: 0.7, 5: 0.7, 6: 0.1}
    others = {"dev_loss": 0.0} if name != "dev_loss" else {}  # it says less, so it does not count
    for step, value in values.items():
        measured(tmp_path, 0, step, **{name: sign * value}, **others)
    measured(tmp_path, 0, 7, regular=False)
    paths = list_checkpoints(tmp_path)
    chosen = {count: steps_of(choose_checkpoints(paths, count, "best")) for count in (1, 2, 3, 9)}
    assert chosen == {1: [2], 2: [2, 5], 3: [2, 4, 5], 9: [1, 2, 3, 4, 5, 6]}
    assert steps_of(choose_checkpoints(paths, 2, "last")) == [5, 6]


def test_accuracy_says_more_than_errors(tmp_path):
    measured(tmp_path, 0, 1, dev_accuracy=0.5, dev_error=0.1)
    measured(tmp_path, 0, 2, dev_accuracy=0.6, dev_error=0.9)
    assert steps_of(choose_checkpoints(list_checkpoints(tmp_path), 1, "best")) == [2]


def test_pruning_keeps_the_best_and_the_newest(tmp_path):
    for step, accuracy in enumerate((0.5, 0.9, 0.8, 0.2, 0.3, 0.85)):
        measured(tmp_path, 0, step, dev_accuracy=accuracy)
        prune_checkpoints(tmp_path, 2, "best")
        assert steps_of(list_checkpoints(tmp_path))[-1] == step  # a run goes on from it
    assert steps_of(list_checkpoints(tmp_path)) == [1, 5]
    measured(tmp_path, 0, 6, regular=False)
    prune_checkpoints(tmp_path, 2, "best")
    assert steps_of(list_checkpoints(tmp_path)) == [1, 5, 6]
    # another stage measures something else: its own come first, however many there are
    for step, error in enumerate((0.9, 0.8, 0.95)):
        measured(tmp_path, 1, step, dev_error=error)
        prune_checkpoints(tmp_path, 2, "best")
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["stage-1-step-0000000", "stage-1-step-0000001", "stage-1-step-0000002"]


def test_what_was_not_measured_is_not_the_best(tmp_path):
    path = measured(tmp_path, 0, 1)
    with pytest.raises(CheckpointError, match=f"{path.name} was written without a look at the development"):
        prune_checkpoints(tmp_path, 2, "best")


def test_average(tmp_path):
    values = (1.0, 2.0, 6.0)
    paths = [checkpoint_path(tmp_path, 0, int(value)) for value in values]
    for path, value in zip(paths, values, strict=True):
        save_checkpoint(path, example(value))
    averaged = average_weights(paths)
    assert torch.equal(averaged["weight"], torch.full((3, 4), 3.0))
    assert averaged["weight"].dtype == torch.float32
    assert averaged["count"] == 6  # an integer is not averaged
    save_checkpoint(paths[0], Checkpoint({"other": torch.zeros(1)}, {}, {}))
    with pytest.raises(CheckpointError, match=r"cannot be averaged .* count is in one only"):
        average_weights(paths)


def test_optimiser_round_trip():
    def train(parameters, optimiser, steps):
        for _ in range(steps):
            optimiser.zero_grad()
            sum((p**2).sum() for p in parameters).backward()
            optimiser.step()

    first = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.arange(3.0))]
    optimiser = torch.optim.Adam(first, lr=0.1, fused=True)
    train(first, optimiser, 3)
    second = [torch.nn.Parameter(p.detach().clone()) for p in first]
    other = torch.optim.Adam(second, lr=0.1, fused=True)
    saved = {name: tensor.clone() for name, tensor in optimiser_tensors(optimiser, ["a.b", "c"]).items()}
    load_optimiser(other, ["a.b", "c"], saved)
    train(first, optimiser, 2)
    train(second, other, 2)
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))


def test_killed_while_writing(tmp_path):
    """Killed at any moment, what has a checkpoint's name is whole."""
    for attempt in range(8):
        folder = tmp_path / str(attempt)
        writer = start_writing(folder)
        while not folder.exists():
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.1))
        writer.kill()
        writer.join()
        for path in list_checkpoints(folder):
            loaded = load_checkpoint(path)
            assert loaded.model["weight"][0] == loaded.state["step"] == int(path.name[-7:])
        remove_unfinished(folder)
        assert not list(folder.glob(".*"))


def test_full_disk(tmp_path):
    """A file that cannot be written to its end leaves nothing behind, and says so."""
    writer = start_writing(tmp_path / "run", largest_file=1_000_000)
    writer.join()
    error = (tmp_path / "error").read_text()
    assert "could not write the checkpoint" in error
    assert "stage-0-step-0000001" in error
    assert list((tmp_path / "run").iterdir()) == []


def test_text_is_replaced_whole(tmp_path):
    path = tmp_path / "a" / "file"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]
