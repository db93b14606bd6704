"""Encoders, decoders, and the systems made of them (the extra `asr`)."""

from brctc.models.attention_decoder import AttentionDecoder, Cache, Memory
from brctc.models.bundle import Model, load_model, save_model
from brctc.models.config import (
    AttentionConfig,
    EncoderConfig,
    SystemConfig,
    TransducerConfig,
    TrimConfig,
)
from brctc.models.encoder import Encoded, Encoder
from brctc.models.subsampling import subsampled_lengths
from brctc.models.system import Objective, System, count_parameters
from brctc.models.transducer import PredictionState, Transducer

__all__ = [
    "AttentionConfig",
    "AttentionDecoder",
    "Cache",
    "Encoded",
    "Encoder",
    "EncoderConfig",
    "Memory",
    "Model",
    "Objective",
    "PredictionState",
    "System",
    "SystemConfig",
    "Transducer",
    "TransducerConfig",
    "TrimConfig",
    "count_parameters",
    "load_model",
    "save_model",
    "subsampled_lengths",
]
