"""Encoders, decoders, and the systems made of them (the extra `asr`)."""

from brctc.models.attention_decoder import AttentionDecoder, Cache, Memory
from brctc.models.bundle import Model, load_model, save_model
from brctc.models.config import (
    AttentionConfig,
    EmformerConfig,
    EncoderConfig,
    SystemConfig,
    TransducerConfig,
    TrimConfig,
)
from brctc.models.emformer import State
from brctc.models.encoder import Encoded, Encoder
from brctc.models.encoder_stream import EncodedFrames, Stream, read_together
from brctc.models.online_encoder import EncodedChunk, OnlineEncoder
from brctc.models.subsampling import frames_to_enter, subsampled_lengths
from brctc.models.system import Objective, System, count_parameters
from brctc.models.transducer import PredictionState, Transducer

__all__ = [
    "AttentionConfig",
    "AttentionDecoder",
    "Cache",
    "EmformerConfig",
    "Encoded",
    "EncodedChunk",
    "EncodedFrames",
    "Encoder",
    "EncoderConfig",
    "Memory",
    "Model",
    "Objective",
    "OnlineEncoder",
    "PredictionState",
    "State",
    "Stream",
    "System",
    "SystemConfig",
    "Transducer",
    "TransducerConfig",
    "TrimConfig",
    "count_parameters",
    "frames_to_enter",
    "load_model",
    "read_together",
    "save_model",
    "subsampled_lengths",
]
