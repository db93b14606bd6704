"""What can be recognized, as a model takes it: audio files, rows of a manifest, features, texts."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from brctc.data import Prepared, Row, extract_features, load_audio
from brctc.data.batch import SOURCE
from brctc.data.checks import text_problems
from brctc.data.manifest import id_problem
from brctc.models import Model


class Input(NamedTuple):
    """An utterance as a model takes it."""

    id: str
    values: Tensor
    """Features (T, F) float32, or tokens (T) of a text."""
    duration_s: float | None
    """None if the model's input has no clock."""


Source = str | Path | Row | tuple[str, np.ndarray | Tensor] | Input
"""An audio file, a row of a manifest (audio, or a text to translate), an id with features (T, F), or what
`read_source` has made of them."""


def read_source(source: Source, model: Model) -> Input:
    """What the model takes of a source; an error names the file or id."""
    if isinstance(source, Input):
        return source
    if model.system.config.encoder.input == "tokens":
        return _read_text(source, model)
    match source:
        case Row():
            if source.path is None:
                raise ValueError(f"{source.id}: there is no audio, only text")
            found = _read_audio(source.id, source.path, model, source.start_sample or 0, source.num_samples)
        case str() | Path():
            name = Path(source).stem
            if problem := id_problem(name):
                raise ValueError(f"{str(source)!r}: {problem}; rename the file")
            found = _read_audio(name, Path(source), model)
        case (str() as name, np.ndarray() | Tensor() as array):
            features = torch.as_tensor(array, dtype=torch.float32)
            clock = model.features
            duration_s = round(len(features) * clock.frame_shift_s, 6) if clock else None
            found = Input(name, features, duration_s)
        case _:
            raise TypeError(f"a source is {source!r}, expected an audio file, a Row or (id, features)")
    _check(found, model)
    return found


def prepared_source(prepared: Prepared, index: int) -> Source:
    """An example of a prepared split."""
    example = prepared.examples[index]
    if prepared.storage.kind == "text":
        return Row(example.id, example.texts[SOURCE])
    return example.id, prepared.features(index)


def check_features(name: str, model: Model, prepared: Prepared) -> None:
    """Refuses a split of other features than the model's."""
    if (model.system.config.encoder.input == "tokens") != (prepared.storage.kind == "text"):
        takes = model.system.config.encoder.input
        raise ValueError(f"{name} takes {takes}, but {prepared.directory} holds {prepared.storage.kind}")
    if prepared.storage.kind == "text":
        return
    wanted = model.system.input_size
    if wanted != prepared.feature_dim or model.features != prepared.feature_config:
        raise ValueError(
            f"{name} takes {wanted} features of {model.features}, but {prepared.directory} "
            f"has {prepared.feature_dim} of {prepared.feature_config}"
        )


def _read_text(source: Source, model: Model) -> Input:
    if not isinstance(source, Row):
        raise TypeError(f"the model translates text: a source is {source!r}, expected a Row with a text")
    if problems := text_problems("text", source.text):
        raise ValueError(f"{source.id}: {'; '.join(problems)}")
    tokens = model.tokenizers[SOURCE].encode(source.text)
    if not tokens:
        raise ValueError(f"{source.id}: the text has no token")
    return Input(source.id, torch.tensor(tokens), None)


def _read_audio(name: str, path: Path, model: Model, start: int = 0, num_samples: int | None = None) -> Input:
    config = model.features
    if config is None:
        raise ValueError(f"{path}: the model takes features that are not made of audio: give (id, features)")
    samples = load_audio(path, config.sample_rate, start, num_samples)
    try:
        features = extract_features(samples, config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Input(name, torch.from_numpy(features), len(samples) / config.sample_rate)


def _check(found: Input, model: Model) -> None:
    name, features = found.id, found.values
    shape, wanted = tuple(features.shape), model.system.input_size
    if len(shape) != 2 or shape[1] != wanted:
        raise ValueError(f"{name}: features of shape {shape}, expected (T, {wanted})")
    if model.system.config.encoder.frames_out(shape[0]) < 1:
        raise ValueError(f"{name}: {shape[0]} frames are too few: the encoder makes none of them")
    if not features.isfinite().all():
        frame = int((~features.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"{name}: a feature of frame {frame} is not finite")
