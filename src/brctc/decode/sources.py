"""What can be recognized, as features: audio files, rows of a manifest, features themselves."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from brctc.data import Prepared, Row, fbank, load_audio
from brctc.models import Model


class Input(NamedTuple):
    """An utterance as a model takes it."""

    id: str
    features: Tensor
    """(T, F) float32"""
    duration_s: float | None
    """None if the model's features have no clock."""


Source = str | Path | Row | tuple[str, np.ndarray | Tensor] | Input
"""An audio file, a row of a manifest, an id with features (T, F), or what `read_source` has made of them."""


def read_source(source: Source, model: Model) -> Input:
    """The features that the model wants of a source; an error names the file or id."""
    match source:
        case Input():
            return source
        case Row():
            if source.path is None:
                raise ValueError(f"{source.id}: there is no audio, only text")
            found = _read_audio(source.id, source.path, model, source.start_sample or 0, source.num_samples)
        case str() | Path():
            found = _read_audio(Path(source).stem, Path(source), model)
        case (str() as name, np.ndarray() | Tensor() as array):
            features = torch.as_tensor(array, dtype=torch.float32)
            clock = model.features
            duration_s = round(len(features) * clock.frame_shift_s, 6) if clock else None
            found = Input(name, features, duration_s)
        case _:
            raise TypeError(f"a source is {source!r}, expected an audio file, a Row or (id, features)")
    _check(found, model)
    return found


def check_features(name: str, model: Model, prepared: Prepared) -> None:
    """Refuses a split of other features than the model's."""
    wanted = model.system.input_size
    if wanted != prepared.feature_dim or model.features != prepared.feature_config:
        raise ValueError(
            f"{name} takes {wanted} features of {model.features}, but {prepared.directory} "
            f"has {prepared.feature_dim} of {prepared.feature_config}"
        )


def _read_audio(name: str, path: Path, model: Model, start: int = 0, num_samples: int | None = None) -> Input:
    config = model.features
    if config is None:
        raise ValueError(f"{path}: the model takes features that are not made of audio: give (id, features)")
    samples = load_audio(path, config.sample_rate, start, num_samples)
    try:
        features = fbank(samples, config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Input(name, torch.from_numpy(features), len(samples) / config.sample_rate)


def _check(found: Input, model: Model) -> None:
    name, features, _ = found
    shape, wanted = tuple(features.shape), model.system.input_size
    if len(shape) != 2 or shape[1] != wanted:
        raise ValueError(f"{name}: features of shape {shape}, expected (T, {wanted})")
    if model.system.config.encoder.frames_out(shape[0]) < 1:
        raise ValueError(f"{name}: {shape[0]} frames are too few: the encoder makes none of them")
    if not features.isfinite().all():
        frame = int((~features.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"{name}: a feature of frame {frame} is not finite")
