"""Runs and models that several tests look at."""

import pytest
import torch

from brctc.data import FeatureConfig, Row, TokenConfig, Tokenizer, write_manifest
from brctc.models import ConformerConfig, System, SystemConfig, save_model
from tests.cli.commands import SMALL, brctc
from tests.data.sounds import noise, write

TEXTS = ("one two", "two", "one one")


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with the runs vanilla and brctc of `brctc train`, and what the second has said."""
    folder = tmp_path_factory.mktemp("trained")
    for name in ("vanilla", "brctc"):
        found = brctc(folder, "train", f"handwriting/{name}", "--out", name, "--set", *SMALL)
        assert found.code == 0, found.err
    return folder, found


@pytest.fixture(scope="session")
def noises(tmp_path_factory):
    """Three noises, a manifest of them, an untrained model, and one that says it finishes early."""
    folder = tmp_path_factory.mktemp("decode")
    rows = []
    for i, text in enumerate(TEXTS):
        path = write(folder / f"u{i}.wav", noise(1 + i / 2, i))
        rows.append(Row(f"u{i}", text, path, 1 + i / 2))
    write_manifest(folder / "all.tsv", rows)
    torch.manual_seed(1)
    small = {"dim": 16, "heads": 2, "feed_forward_dim": 16, "kernel_size": 3, "subsampling_channels": 4}
    encoder = ConformerConfig(first_layers=1, second_layers=1, **small)
    tokenizer = Tokenizer.train(TEXTS, TokenConfig(kind="word"))
    system = System(SystemConfig(encoder=encoder), 80, {"transcript": tokenizer.size})
    with torch.no_grad():
        system.heads["transcript"].bias[:2] = -1  # it shall say words
    for name, description in (("model", {}), ("early", {"spikes_moved": True})):
        save_model(folder / name, system, {"transcript": tokenizer}, FeatureConfig(), None, description)
    return folder
