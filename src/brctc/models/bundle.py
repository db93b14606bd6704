"""A trained system as a directory: all that decoding needs, in safetensors and JSON.

`model.json` names the file of its weights and that file's SHA-256. Weights are written first, under
a name that holds their hash; then `model.json` is replaced, in one step; then older weights go. So at
any moment the directory holds one whole model, the old or the new one. Nothing is ever unpickled.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

from brctc.data import FeatureConfig, Tokenizer
from brctc.files import TEMPORARY, write_bytes, write_text
from brctc.models.config import SystemConfig, TrimConfig
from brctc.models.system import System

DESCRIPTION = "model.json"
FORMAT, VERSION = "brctc-model", 1


@dataclass(frozen=True)
class Model:
    """A system with what it was trained for."""

    system: System
    tokenizer: Tokenizer
    features: FeatureConfig | None
    """How to make its input from audio; None if it does not hear."""
    trim: TrimConfig | None
    """How it was trained to be trimmed."""
    description: dict[str, Any]
    """Where it comes from: whatever JSON can say."""


def save_model(
    directory: str | Path,
    system: System,
    tokenizer: Tokenizer,
    features: FeatureConfig | None = None,
    trim: TrimConfig | None = None,
    description: dict[str, Any] | None = None,
) -> None:
    """Writes a model, in place of the one that `directory` may hold."""
    if tokenizer.size != system.vocab_size:
        raise ValueError(f"the tokenizer has {tokenizer.size} classes, the system {system.vocab_size}")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in system.state_dict().items()}
    weights = safetensors.torch.save(tensors)
    digest = hashlib.sha256(weights).hexdigest()
    name = f"model-{digest[:12]}.safetensors"
    content = {
        "format": FORMAT,
        "version": VERSION,
        "weights": {"file": name, "sha256": digest},
        "feature_dim": system.feature_dim,
        "vocab_size": system.vocab_size,
        "system": system.config.model_dump(),
        "features": features.model_dump() if features else None,
        "trim": trim.model_dump() if trim else None,
        "description": description or {},
        "tokenizer": tokenizer.to_dict(),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    directory = Path(directory)
    write_bytes(directory / name, weights)
    write_text(directory / DESCRIPTION, text)
    for old in (*directory.glob("model-*.safetensors"), *directory.glob(f"{TEMPORARY}model*")):
        if old.name != name:
            old.unlink(missing_ok=True)


def load_model(directory: str | Path) -> Model:
    """Reads what `save_model` wrote, onto the CPU and ready for evaluation; refuses anything else."""
    path = Path(directory) / DESCRIPTION
    if not path.is_file():
        inside = Path(directory) / "model"  # of a run
        hint = f"; say {inside}" if (inside / DESCRIPTION).is_file() else ""
        raise FileNotFoundError(f"{directory} holds no model: there is no {path}{hint}")
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'{path} is not a model of brctc: its "format" is not "{FORMAT}"')
    if content.get("version") != VERSION:
        version = content.get("version")
        raise ValueError(f"{path} has format version {version}, this brctc reads {VERSION}")
    try:
        with torch.device("meta"):  # shapes only: no memory is taken before the weights have been checked
            system = System(
                SystemConfig.model_validate(content["system"]),
                _size(content, "feature_dim"),
                _size(content, "vocab_size"),
            )
        tokenizer = Tokenizer.from_dict(content["tokenizer"])
        features = FeatureConfig.model_validate(content["features"]) if content["features"] else None
        trim = TrimConfig.model_validate(content["trim"]) if content["trim"] else None
        description = content["description"]
        weights = Path(directory) / Path(content["weights"]["file"]).name
        digest = content["weights"]["sha256"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__} {error}") from None
    except ValidationError as error:
        raise ValueError(f"{path} does not describe a model: {error}") from None
    if tokenizer.size != system.vocab_size:
        raise ValueError(
            f"{path} is damaged: its tokenizer has {tokenizer.size} classes, its system {system.vocab_size}"
        )
    system.load_state_dict(_read_weights(weights, digest, system), assign=True)
    return Model(system.eval(), tokenizer, features, trim, description)


def _size(content: dict[str, Any], name: str) -> int:
    size = content[name]
    if not isinstance(size, int) or size < 1:
        raise TypeError(f"{name} is {size!r}")
    return size


def _read_weights(path: Path, digest: str, system: System) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the model is not whole")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{path} is damaged: its SHA-256 is not the one in {DESCRIPTION}")
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None
    expected = system.state_dict()
    for name, tensor in expected.items():
        if name not in tensors:
            raise ValueError(f"{path} does not fit its description: tensor {name} is missing")
        if tensors[name].shape != tensor.shape or not tensors[name].is_floating_point():
            found = f"{tensors[name].dtype} {tuple(tensors[name].shape)}"
            raise ValueError(f"{path}: tensor {name} is {found}, expected float {tuple(tensor.shape)}")
    for name in tensors.keys() - expected.keys():
        raise ValueError(f"{path} does not fit its description: tensor {name} is unknown")
    return tensors
