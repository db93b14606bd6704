"""A trained system as a directory: all that decoding needs, in safetensors and JSON.

`model.json` names the file of its weights and that file's SHA-256. Weights are written first, under
a name that holds their hash; then `model.json` is replaced, in one step; then older weights go. So at
any moment the directory holds one whole model, the old or the new one. Nothing is ever unpickled.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import safetensors
import safetensors.torch
import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor
from torch.overrides import TorchFunctionMode

from brctc.config import Config, KeyedError, describe_problems
from brctc.data import FeatureConfig, Tokenizer
from brctc.data.features import StoredFeatures
from brctc.files import TEMPORARY, read_json, write_bytes, write_text
from brctc.models.base import TrimConfig
from brctc.models.system import System, SystemConfig
from brctc.runs import MODEL_DESCRIPTION as DESCRIPTION
from brctc.runs import RunDirectory

FORMAT, VERSION = "brctc-model", 2
Size = Annotated[int, Field(strict=True, ge=1, lt=2**31)]


@dataclass(frozen=True)
class Model:
    """A system with what it was trained for."""

    system: System
    tokenizers: Mapping[str, Tokenizer]
    """By the texts that they are for."""
    features: FeatureConfig | None
    """How to make its input from audio; None if it does not hear."""
    trim: TrimConfig | None
    """How it was trained to be trimmed."""
    description: dict[str, Any]
    """Where it comes from: whatever JSON can say."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the text that it gives out."""
        return self.tokenizers[self.system.config.output]

    @property
    def watched_tap(self) -> str:
        """The tap whose posterior shows what the model does: where it can be trimmed, or else the last."""
        encoder = self.system.config.encoder
        return encoder.trims_at or encoder.taps[-1]

    @property
    def watched_text(self) -> str | None:
        """The text that CTC predicts there; None if there is none."""
        return self.system.config.watched_text(self.trim)


def save_model(
    directory: str | Path,
    system: System,
    tokenizers: Mapping[str, Tokenizer],
    features: FeatureConfig | None = None,
    trim: TrimConfig | None = None,
    description: dict[str, Any] | None = None,
) -> None:
    """Writes a model, in place of the one that `directory` may hold."""
    for text, size in system.vocab_sizes.items():
        found = tokenizers[text].size if text in tokenizers else None
        if found != size:
            raise ValueError(f"the tokenizer of {text} has {found} classes, the system {size}")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in system.state_dict().items()}
    weights = safetensors.torch.save(tensors)
    digest = hashlib.sha256(weights).hexdigest()
    name = f"model-{digest[:12]}.safetensors"
    content = {
        "format": FORMAT,
        "version": VERSION,
        "weights": {"file": name, "sha256": digest},
        "input_size": system.input_size,
        "vocab_sizes": system.vocab_sizes,
        "system": system.config.model_dump(mode="json"),
        "features": features.model_dump() if features else None,
        "trim": trim.model_dump() if trim else None,
        "description": description or {},
        "tokenizers": {text: tokenizer.to_dict() for text, tokenizer in tokenizers.items()},
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    directory = Path(directory)
    write_bytes(directory / name, weights)
    write_text(directory / DESCRIPTION, text)
    for old in (*directory.glob("model-*.safetensors"), *directory.glob(f"{TEMPORARY}*-model*")):
        if old.name != name:
            old.unlink(missing_ok=True)


def describe_model(directory: str | Path, changes: Mapping[str, Any]) -> None:
    """Changes keys of a model's description, None removes one; the rest of the model stays as it is."""
    path = Path(directory) / DESCRIPTION
    content = read_json(path)
    described = content["description"] | changes
    content["description"] = {key: value for key, value in described.items() if value is not None}
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False))


class Weights(Config):
    """The file of the weights."""

    file: str
    sha256: str


class Saved(Config):
    """What `model.json` says."""

    format: str
    version: int
    weights: Weights
    input_size: Size
    vocab_sizes: dict[str, Size]
    system: SystemConfig
    features: StoredFeatures
    trim: TrimConfig | None
    description: dict[str, Any]
    tokenizers: dict[str, dict[str, Any]]

    @model_validator(mode="after")
    def _parts_fit(self) -> "Saved":
        if self.system.output not in self.tokenizers:
            raise KeyedError("tokenizers", f"there is no tokenizer of {self.system.output!r}")
        if self.features is not None and self.features.dim != self.input_size:
            raise KeyedError("features.num_bins", f"the system takes {self.input_size} features")
        if self.trim is not None and self.system.encoder.trims_at is None:
            raise KeyedError("trim", f"an encoder of kind {self.system.encoder.kind} cannot be trimmed")
        if self.trim is not None and self.trim.text not in self.system.heads:
            raise KeyedError("trim.text", f"there is no CTC head for {self.trim.text!r}")
        return self


def load_bundle(directory: str | Path) -> Model:
    """Reads what `save_model` wrote, onto the CPU and ready for evaluation; refuses anything else."""
    path = Path(directory) / DESCRIPTION
    if not path.is_file():
        inside = RunDirectory(directory)
        hint = f"; say {inside.model}" if inside.has_model else ""
        raise FileNotFoundError(f"{directory} holds no model: there is no {path}{hint}")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'{path} is not a model of brctc: its "format" is not "{FORMAT}"')
    if content.get("version") != VERSION:
        version = content.get("version")
        raise ValueError(f"{path} has format version {version}, this brctc reads {VERSION}")
    saved = _parse(path, content)
    tensors = _read_weights(Path(directory), saved.weights)  # before anything is built for them
    try:
        tokenizers = {text: Tokenizer.from_dict(known) for text, known in saved.tokenizers.items()}
        for text, tokenizer in tokenizers.items():
            if saved.vocab_sizes.get(text, tokenizer.size) != tokenizer.size:
                classes = f"{tokenizer.size} classes, its system {saved.vocab_sizes[text]}"
                raise ValueError(f"the tokenizer of {text} has {classes}")
        # shapes only: no memory is taken before they are compared
        with torch.device("meta"), _Bounded(100 * len(tensors) + 10_000):
            system = System(saved.system, saved.input_size, saved.vocab_sizes)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    _check_weights(path, tensors, system)
    system.load_state_dict(tensors, assign=True)
    return Model(system.eval(), tokenizers, saved.features, saved.trim, saved.description)


def _parse(path: Path, content: dict[str, Any]) -> Saved:
    try:
        try:
            return Saved.model_validate(content)
        except ValidationError as error:
            problems = describe_problems(error, Saved, "model")
    except RecursionError:  # deep enough to be read, too deep to be checked or shown
        problems = "it is nested too deeply"
    raise ValueError(f"{path} does not describe a model: {problems}")


class _Bounded(TorchFunctionMode):
    """Stops the building of modules after so many calls of torch: a small file can ask for a million layers.

    A parameter takes about six.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("it describes a system that is much larger than its weights")
        return func(*args, **(kwargs or {}))


def _read_weights(directory: Path, described: Weights) -> dict[str, Tensor]:
    path = directory / Path(described.file).name
    try:
        whole = path.is_file()
    except OSError:  # no file can have such a name
        whole = False
    if not whole:
        raise FileNotFoundError(f"{path} is missing: the model is not whole")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != described.sha256:
        raise ValueError(f"{path} is damaged: its SHA-256 is not the one in {DESCRIPTION}")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


def _check_weights(path: Path, tensors: dict[str, Tensor], system: System) -> None:
    expected = system.state_dict()
    for name, tensor in expected.items():
        if name not in tensors:
            raise ValueError(f"{path} does not fit its weights: tensor {name} is missing")
        if tensors[name].shape != tensor.shape or not tensors[name].is_floating_point():
            found = f"{tensors[name].dtype} {tuple(tensors[name].shape)}"
            raise ValueError(f"{path}: tensor {name} is {found}, expected float {tuple(tensor.shape)}")
    for name in tensors.keys() - expected.keys():
        raise ValueError(f"{path} does not fit its weights: tensor {name} is unknown")
