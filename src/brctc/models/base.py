"""What encoders and decoders are to the systems made of them. Axes: N examples, T frames, D features.

An encoder gives named sequences, its taps. CTC heads are attached to taps outside of it, and so is
trimming: the encoder hands a tap out and goes on with what it gets back.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import BeforeValidator, Field, PositiveInt, SerializeAsAny
from torch import Tensor, nn

from brctc.config import Config, KeyedError, Kind, Registry
from brctc.data.batch import Padded
from brctc.data.subsampling import subsampled_frames

MIDDLE, TRIMMED, FINAL = "middle", "trimmed", "final"
"""Taps: before and after trimming, and behind the last layer, which every encoder has."""

Dim = Annotated[int, Field(ge=1, le=65536)]
Layers = Annotated[int, Field(ge=1, le=1000)]
Frames = Annotated[int, Field(ge=1, le=10_000)]
FramesOrNone = Annotated[int, Field(ge=0, le=10_000)]
Heads = PositiveInt
Dropout = Field(0.1, ge=0, lt=1)
AttentionDropout = Field(0.0, ge=0, lt=1)

ENCODERS: Registry["EncoderConfig"] = Registry("encoder", default="conformer")
DECODERS: Registry["DecoderConfig"] = Registry("decoder")

Trim = Callable[[str, Padded], Padded]
"""Given a tap and its sequence, what the encoder goes on with."""


class EncoderConfig(Kind):
    """An encoder as data. Every kind has a file, and registers itself in ENCODERS."""

    registry: ClassVar[Registry[Any]] = ENCODERS
    taps: ClassVar[tuple[str, ...]] = (FINAL,)
    """The sequences that CTC heads can be attached to, the last one is `final`."""
    trims_at: ClassVar[str | None] = None
    """The tap at which frames can be dropped; None if there is none."""
    streaming: ClassVar[bool] = False
    """Whether it takes streams: then it builds a `StreamingEncoder`."""
    input: ClassVar[Literal["frames", "tokens"]] = "frames"
    """What it takes: features (N, T, F), or the tokens (N, T) of a text."""

    kind: str
    dim: Dim
    subsampling: int = 1

    @property
    def up_sampling_factor(self) -> int:
        """Frames that come of a token, or of a subsampled frame."""
        return 1

    def middle_order(self, frames: int) -> list[int]:
        """Which of so many frames is at each place of the tap where frames can be dropped."""
        return list(range(frames))

    def frames_out(self, frames: int) -> int:
        """How many frames come of so many; 0 or less is too short."""
        return self.up_sampling_factor * subsampled_frames(frames, self.subsampling)

    def source_tokens(self, count: int) -> list[int]:
        """Of a text of so many tokens: the token that each frame is of, where frames can be dropped."""
        rate = self.up_sampling_factor
        return [frame // rate for frame in self.middle_order(rate * count)]

    def tap_dim(self, tap: str) -> int:
        """D of a tap."""
        return self.dim

    @property
    def window_frames(self) -> int:
        """Of a streaming kind: feature frames that a chunk is computed from, its right context included."""
        raise NotImplementedError

    @property
    def hop_frames(self) -> int:
        """Of a streaming kind: feature frames from one chunk to the next."""
        raise NotImplementedError

    def build(self, input_size: int) -> "Encoder":
        """The network for so many features, or for a vocabulary of this size."""
        raise NotImplementedError


class Encoder(nn.Module):
    """Padded source in, taps out. What comes out behind an example's end is arbitrary."""

    def forward(self, source: Padded, trim: Trim | None = None) -> dict[str, Padded]:
        """All taps by name, `final` among them."""
        raise NotImplementedError


class StreamState(Protocol):
    """What N streams have left behind, with N in front of every tensor."""

    def select(self, streams: Any) -> "StreamState":
        """The state of some of the streams."""
        ...


class StreamingEncoder(Encoder):
    """An encoder that also takes streams, chunk by chunk, with the same output.

    A chunk is computed from the config's `window_frames` feature frames, the next chunk's begin `hop_frames`
    later. What else a chunk needs to know of the past is in its state.
    """

    chunk_frames: int
    """Of the encoder's own."""
    right_context_frames: int
    hop_frames: int
    """As the config's, and so is `window_frames`."""
    window_frames: int

    def initial_state(self, streams: int) -> Any:
        """Before the first chunk."""
        raise NotImplementedError

    def join_states(self, states: Any) -> Any:
        """The states of several calls as one batch."""
        raise NotImplementedError

    def step(self, features: Tensor, lengths: Tensor, state: Any) -> tuple[Padded, Any]:
        """The next chunk of N streams, (N, window_frames, F) with so many frames each, and the state behind
        it. A stream that has fewer than all ends there."""
        raise NotImplementedError


class DecoderConfig(Kind):
    """A decoder as data. Every kind has a file, and registers itself in DECODERS."""

    registry: ClassVar[Registry[Any]] = DECODERS

    kind: str
    text: str = "transcript"
    """What it says."""
    on: str = FINAL
    """The tap that it attends to."""

    def build(self, encoder_dim: int, vocab_size: int) -> "Decoder":
        """The network behind an encoder."""
        raise NotImplementedError


AnyEncoder = Annotated[SerializeAsAny[EncoderConfig], BeforeValidator(ENCODERS.parse)]
AnyDecoder = Annotated[SerializeAsAny[DecoderConfig], BeforeValidator(DECODERS.parse)]


class Decoder(nn.Module):
    """Says a text, given an encoder's frames."""

    def loss(self, memory: Padded, targets: Padded) -> Tensor:
        """Nats per label: an utterance's nats over its target length, averaged over the batch."""
        raise NotImplementedError


class TrimConfig(Config):
    """When a blank is certain, and how many frames to keep behind the last one that is not."""

    threshold: float = Field(0.99, gt=0, lt=1)
    margin: int = Field(5, ge=0, le=1_000_000)
    text: str = "transcript"
    """Whose CTC head decides."""


class StreamOutput(NamedTuple):
    """What a system makes of one chunk of N streams. T is the chunk's length."""

    hidden: Padded
    """(N, T, D); T frames but at a stream's end."""
    logits: Tensor
    """(N, T, C)"""


def check_name(key: str, name: str) -> None:
    """A part of a model or a loss is called as a file might be, and not as what torch's modules have."""
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    if not plain or hasattr(nn.ModuleDict, name):
        raise KeyedError(key, f"{name!r} cannot be a name: use letters, digits, - and _, such as final")


def check_heads(dim: int, heads: int) -> None:
    """Each head takes an equal part of dim; positions are pairs of a sine and a cosine."""
    if dim % heads or dim % 2:
        raise ValueError(f"dim is {dim}, expected an even number that {heads} heads divide")


def check_kernel_size(kernel_size: int | None) -> None:
    """A convolution has a middle."""
    if kernel_size is not None and kernel_size % 2 == 0:
        raise ValueError(f"kernel_size is {kernel_size}, expected an odd number")
