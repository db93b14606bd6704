"""Models that are saved, for tests to spoil."""

import hashlib
import json
from pathlib import Path

import safetensors.torch

from brctc.data import FeatureConfig, TokenConfig, Tokenizer
from brctc.models import TrimConfig, save_model
from tests.models.toys import TEXT, toy_system

TOKENIZER = Tokenizer.train(["abc"], TokenConfig())  # five classes with blank and unknown


def save(directory, system=None, **changes):
    options = {
        "tokenizers": {TEXT: TOKENIZER},
        "features": FeatureConfig(num_bins=11),
        "trim": TrimConfig(threshold=0.9, margin=3),
        "description": {"corpus": "toys", "epochs": [1, 2]},
    }
    save_model(directory, system or toy_system(attention=True), **{**options, **changes})


def head_of(system):
    return system.heads[TEXT].weight


def weights_file(directory) -> Path:
    (path,) = Path(directory).glob("*.safetensors")
    return path


def rewrite(directory, change):
    path = Path(directory) / "model.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def replace_weights(directory, change):
    """Other tensors under a hash that is right: only their names and shapes can be wrong."""
    path = weights_file(directory)
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    path.write_bytes(safetensors.torch.save(tensors))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    rewrite(directory, lambda content: content["weights"].update(sha256=digest))
