"""What a system is made of, as data: the model sections of a recipe."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from brctc.data.config import Config

Dropout = Field(0.1, ge=0, lt=1)


def _check_heads(dim: int, heads: int) -> None:
    """Each head takes an equal part of dim; positions are pairs of a sine and a cosine."""
    if dim % heads or dim % 2:
        raise ValueError(f"dim is {dim}, expected an even number that {heads} heads divide")


class EncoderConfig(Config):
    """A Conformer in two halves. The defaults are those of the paper's table 3."""

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
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size is {self.kernel_size}, expected an odd number")
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


class SystemConfig(Config):
    """An encoder with its CTC output, and the decoders behind it."""

    encoder: EncoderConfig = EncoderConfig()
    attention: AttentionConfig | None = None
    transducer: TransducerConfig | None = None
    normalisation: Literal["global", "utterance", "none"] = "global"
