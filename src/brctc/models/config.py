"""What a system is made of, as data: the model sections of a recipe."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from brctc.config import Config

Dropout = Field(0.1, ge=0, lt=1)


def _check_heads(dim: int, heads: int) -> None:
    """Each head takes an equal part of dim; positions are pairs of a sine and a cosine."""
    if dim % heads or dim % 2:
        raise ValueError(f"dim is {dim}, expected an even number that {heads} heads divide")


def _check_kernel_size(kernel_size: int | None) -> None:
    if kernel_size is not None and kernel_size % 2 == 0:
        raise ValueError(f"kernel_size is {kernel_size}, expected an odd number")


class EncoderConfig(Config):
    """A Conformer in two halves. The defaults are those of the paper's table 3."""

    kind: Literal["conformer"] = "conformer"
    subsampling: Literal[1, 2, 4] = 4
    subsampling_channels: PositiveInt | None = None
    """Channels of the subsampling convolutions. None: dim, as usual; on a CPU they would then take
    most of a small model's time, and 16 or 32 do."""
    dim: PositiveInt = 512
    heads: PositiveInt = 4
    feed_forward_dim: PositiveInt = 2048
    first_layers: PositiveInt = 6
    second_layers: PositiveInt = 6
    kernel_size: PositiveInt = 31
    dropout: float = Dropout
    positions: Literal["relative", "sinusoidal"] = "relative"

    @model_validator(mode="after")
    def _check(self) -> "EncoderConfig":
        _check_heads(self.dim, self.heads)
        _check_kernel_size(self.kernel_size)
        return self


class EmformerConfig(Config):
    """An Emformer, which hears an utterance chunk by chunk and has one CTC output.

    Frames are the encoder's own: 40 ms where features come every 10 ms and the subsampling is 4. The
    defaults are those of table 4 with chunks of 320 ms, twice as long as their right context.
    """

    kind: Literal["emformer"] = "emformer"
    subsampling: Literal[1, 2, 4] = 4
    subsampling_channels: PositiveInt | None = None
    """As a Conformer's."""
    dim: PositiveInt = 512
    heads: PositiveInt = 4
    feed_forward_dim: PositiveInt = 2048
    layers: PositiveInt = 12
    kernel_size: PositiveInt | None = None
    """Of each layer's convolution. None: it has none, as in table 4."""
    chunk_frames: PositiveInt = 8
    left_context_frames: NonNegativeInt = 8
    right_context_frames: NonNegativeInt = 4
    memory_size: NonNegativeInt = 4
    """Chunks before the present one that are remembered by a summary of each."""
    dropout: float = Dropout

    @model_validator(mode="after")
    def _check(self) -> "EmformerConfig":
        _check_heads(self.dim, self.heads)
        _check_kernel_size(self.kernel_size)
        return self


class AttentionConfig(Config):
    """A Transformer decoder. The defaults are those of table 3."""

    layers: PositiveInt = 6
    dim: PositiveInt = 512
    heads: PositiveInt = 4
    feed_forward_dim: PositiveInt = 2048
    dropout: float = Dropout
    label_smoothing: float = Field(0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> "AttentionConfig":
        _check_heads(self.dim, self.heads)
        return self


class TransducerConfig(Config):
    """An LSTM prediction network and a joint network. The defaults are those of table 3."""

    prediction_dim: PositiveInt = 512
    prediction_layers: PositiveInt = 1
    joint_dim: PositiveInt = 512
    dropout: float = Dropout


class TrimConfig(Config):
    """When a blank is certain, and how many frames to keep behind the last one that is not."""

    threshold: float = Field(0.99, gt=0, lt=1)
    margin: int = Field(5, ge=0)


def _conformer_unless_told(encoder: Any) -> Any:
    return {"kind": "conformer", **encoder} if isinstance(encoder, dict) else encoder


class SystemConfig(Config):
    """An encoder with its CTC output, and the decoders behind it."""

    encoder: Annotated[
        EncoderConfig | EmformerConfig,
        Field(discriminator="kind"),
        BeforeValidator(_conformer_unless_told),
    ] = EncoderConfig()
    attention: AttentionConfig | None = None
    transducer: TransducerConfig | None = None
    normalisation: Literal["global", "utterance", "none"] = "global"

    @property
    def online(self) -> bool:
        """Whether the encoder takes streams: it then has one CTC output, and is not trimmed."""
        return isinstance(self.encoder, EmformerConfig)

    @model_validator(mode="after")
    def _check(self) -> "SystemConfig":
        if self.online and self.normalisation == "utterance":
            raise ValueError('normalisation is "utterance", but an emformer hears no utterance as a whole')
        return self
