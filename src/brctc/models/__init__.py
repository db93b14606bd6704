"""Encoders, heads, decoders, and the systems made of them (the extra `asr`)."""

from brctc.extras import check_extra

check_extra()


from brctc.models.attention_decoder import AttentionConfig, AttentionDecoder, Cache, Memory
from brctc.models.base import (
    DECODERS,
    ENCODERS,
    FINAL,
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    StreamingEncoder,
    StreamOutput,
    TrimConfig,
)
from brctc.models.bundle import Model, save_model
from brctc.models.conformer_encoder import ConformerConfig, ConformerEncoder
from brctc.models.emformer import State
from brctc.models.emformer_encoder import EmformerConfig, EmformerEncoder
from brctc.models.encoder_stream import (
    EncodedFrames,
    EncoderStream,
    StreamingSystem,
    in_training,
    read_together,
)
from brctc.models.heads import CTCHead, HeadConfig
from brctc.models.legonn_encoder import LegoNNConfig, LegoNNEncoder
from brctc.models.loading import load_model
from brctc.models.system import (
    DecoderMemory,
    Encoded,
    System,
    SystemConfig,
    UpperEncoderConfig,
    count_parameters,
)
from brctc.models.transducer import PredictionState, Transducer, TransducerConfig

__all__ = [
    "AttentionConfig",
    "AttentionDecoder",
    "CTCHead",
    "Cache",
    "ConformerConfig",
    "ConformerEncoder",
    "DECODERS",
    "Decoder",
    "DecoderConfig",
    "ENCODERS",
    "EmformerConfig",
    "EmformerEncoder",
    "DecoderMemory",
    "Encoded",
    "EncodedFrames",
    "Encoder",
    "EncoderConfig",
    "EncoderStream",
    "FINAL",
    "HeadConfig",
    "LegoNNConfig",
    "LegoNNEncoder",
    "Memory",
    "Model",
    "PredictionState",
    "State",
    "StreamOutput",
    "StreamingEncoder",
    "StreamingSystem",
    "System",
    "SystemConfig",
    "Transducer",
    "TransducerConfig",
    "TrimConfig",
    "UpperEncoderConfig",
    "count_parameters",
    "in_training",
    "load_model",
    "read_together",
    "save_model",
]
