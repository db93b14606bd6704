"""A whole system: normalisation, an encoder, CTC heads on its taps, and decoders behind it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from brctc.config import Config, KeyedError
from brctc.data.batch import Padded
from brctc.kernels.tensors import Lengths
from brctc.models.base import (
    FINAL,
    AnyDecoder,
    AnyEncoder,
    Encoder,
    StreamingEncoder,
    StreamOutput,
    Trim,
    TrimConfig,
    check_name,
)
from brctc.models.conformer_encoder import ConformerConfig
from brctc.models.heads import CTCHead, HeadConfig
from brctc.models.normalisation import Normalisation
from brctc.skipping import skip_blanks as skip_certain_blanks
from brctc.trimming import trim as trim_frames
from brctc.trimming import trimmed_lengths


class UpperEncoderConfig(Config):
    """An encoder whose input is a tap of what is below it."""

    on: str = FINAL
    """The tap that it takes: one of the encoder, or an upper encoder before it."""
    encoder: AnyEncoder

    @model_validator(mode="after")
    def _takes_frames(self) -> "UpperEncoderConfig":
        if self.encoder.input != "frames":
            raise KeyedError("encoder.kind", f"an encoder of kind {self.encoder.kind} takes no frames")
        if self.encoder.subsampling != 1 or self.encoder.up_sampling_factor != 1:
            raise KeyedError("encoder.subsampling", "an upper encoder gives as many frames as it takes: 1")
        return self


class SystemConfig(Config):
    """An encoder with its CTC heads, and the decoders behind it."""

    encoder: AnyEncoder = ConformerConfig()
    upper_encoders: dict[str, UpperEncoderConfig] = Field(default_factory=dict)
    """Encoders on top of it, such as a translation encoder; the name of each is that of its tap."""
    heads: Annotated[dict[str, HeadConfig], Field(default_factory=lambda: {"transcript": HeadConfig()})]
    """The texts that CTC predicts, each with a classifier of frames."""
    decoders: dict[str, AnyDecoder] = Field(default_factory=dict)
    """By name, as losses and searches call them."""
    normalisation: Literal["global", "utterance", "none"] = "global"
    """Of features: by the corpus's statistics, by each utterance's own, or not at all."""
    output: str = "transcript"
    """The text that decoding gives."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "SystemConfig":
        if self.encoder.streaming and self.normalisation == "utterance":
            problem = (
                f'is "utterance", but an encoder of kind {self.encoder.kind} hears no utterance as a whole'
            )
            raise KeyedError("normalisation", problem)
        below = list(self.encoder.taps)
        for name, upper in self.upper_encoders.items():
            check_name(f"upper_encoders.{name}", name)
            if name in below:
                raise KeyedError(f"upper_encoders.{name}", "the encoder has a tap of this name")
            _check_tap(f"upper_encoders.{name}.on", upper.on, below)
            below.append(name)
        if self.encoder.streaming and self.upper_encoders:
            raise KeyedError("upper_encoders", f"streams end with the encoder of kind {self.encoder.kind}")
        for name, head in self.heads.items():
            check_name(f"heads.{name}", name)
            self.check_tap(f"heads.{name}.on", head.on)
        for name, decoder in self.decoders.items():
            check_name(f"decoders.{name}", name)
            self.check_tap(f"decoders.{name}.on", decoder.on)
        return self

    def check_tap(self, key: str, tap: str) -> None:
        """Refuses a tap that the encoder does not have."""
        _check_tap(key, tap, self.taps)

    @property
    def taps(self) -> tuple[str, ...]:
        """Of the encoder, and of those on top of it."""
        return (*self.encoder.taps, *self.upper_encoders)

    def tap_dim(self, tap: str) -> int:
        """D of a tap."""
        upper = self.upper_encoders.get(tap)
        return self.encoder.tap_dim(tap) if upper is None else upper.encoder.tap_dim(FINAL)

    def only_with(self, taps: Iterable[str], decoders: Iterable[str]) -> "SystemConfig":
        """The same system with these decoders alone, and as much above the encoder as the taps need."""
        wanted = {*taps, *(self.decoders[name].on for name in decoders)}
        for name, upper in reversed(self.upper_encoders.items()):
            wanted |= {upper.on} if name in wanted else set()
        there = {*self.encoder.taps, *wanted}
        parts = {
            "upper_encoders": {n: upper for n, upper in self.upper_encoders.items() if n in wanted},
            "heads": {text: head for text, head in self.heads.items() if head.on in there},
            "decoders": {name: self.decoders[name] for name in self.decoders if name in decoders},
        }
        return self.model_copy(update=parts)

    def watched_text(self, trim: TrimConfig | None = None) -> str | None:
        """The text that CTC predicts inside the encoder: the one that decides what is trimmed, or the text of
        decoding, or else any; None if there is none."""
        below = [text for text, head in self.heads.items() if head.on in self.encoder.taps]
        wanted = trim.text if trim is not None else self.output
        return wanted if wanted in below else next(iter(below), None)

    def trim_rule(self, given: TrimConfig | None = None) -> TrimConfig | None:
        """How it is trimmed, or would usually be; None if it cannot be."""
        text = self.watched_text(given)
        if self.encoder.trims_at is None or text is None:
            return None
        return given or TrimConfig.model_validate({"text": text})

    @property
    def streaming(self) -> bool:
        """Whether it takes streams."""
        return self.encoder.streaming

    def decoder_name(self, kind: str) -> str | None:
        """The decoder of a kind that says the text of decoding; None if there is none."""
        found = (name for name, d in self.decoders.items() if (d.kind, d.text) == (kind, self.output))
        return next(found, None)


class DecoderMemory(NamedTuple):
    """The frames that a decoder sees."""

    hidden: Padded
    frames: Tensor | None
    """(N, T): which ones of its tap they are; None for all."""

    def frames_of(self, n: int, found: Sequence[int]) -> list[int]:
        """Frames of an utterance, as its tap counts them."""
        return list(found) if self.frames is None else self.frames[n, list(found)].tolist()


class Encoded:
    """What a system makes of a batch: the encoder's taps, and what heads predict on them when asked."""

    def __init__(self, system: "System") -> None:
        self.taps: dict[str, Padded] = {}
        self._heads: Mapping[str, nn.Module] = system.heads  # pyright: ignore[reportAttributeAccessIssue]
        self._config = system.config
        self._logits: dict[tuple[str, str, bool], Tensor] = {}

    @property
    def final(self) -> Padded:
        """What the encoder gives in the end."""
        return self.taps[FINAL]

    def logits(self, tap: str | None = None, text: str | None = None) -> Padded:
        """(N, T, C): the CTC output for a text, by default the one of decoding, on a tap, by default the one
        that its head is made for."""
        text = text or self._config.output
        tap = tap or (self._config.heads[text].on if text in self._config.heads else FINAL)
        if tap not in self.taps:
            raise ValueError(f"there is no tap {tap!r}; the encoder has {', '.join(self.taps)}")
        hidden, lengths = self.taps[tap]
        key = tap, text, torch.is_grad_enabled()  # what was looked at without a gradient has none for a loss
        if key not in self._logits:
            self._logits[key] = _head_of(self._heads, text)(hidden)
        return Padded(self._logits[key], lengths)

    def memory(self, decoder: str) -> Padded:
        """What a decoder attends to, by its name."""
        return self.taps[self._config.decoders[decoder].on]

    def seen_by(self, decoder: str, skip_blanks: float | None = None) -> DecoderMemory:
        """What a decoder attends to, or the frames of it whose CTC blank is at most so likely."""
        config, memory = self._config.decoders[decoder], self.memory(decoder)
        if skip_blanks is None:
            return DecoderMemory(memory, None)
        head = self._config.heads.get(config.text)
        if head is None or head.on != config.on:
            raise ValueError(
                f"skip_blanks needs a CTC head of {config.text} on {config.on}, where the decoder is"
            )
        logits = self.logits(config.on, config.text).values
        hidden, lengths, frames = skip_certain_blanks(
            *memory, logits, threshold=skip_blanks, from_logits=True
        )
        return DecoderMemory(Padded(hidden, lengths), frames)

    def kept_lengths(self, tap: str, rule: TrimConfig) -> Tensor:
        """(N): how many frames of a tap trimming by the rule keeps, or would keep."""
        logits, lengths = self.logits(tap, rule.text)
        return trimmed_lengths(
            logits, lengths, threshold=rule.threshold, margin=rule.margin, from_logits=True
        )


class System(nn.Module):
    """Features or tokens in, taps and predictions out.

    Every loss of its parts is in nats per label: an utterance's nats divided by its target length (1 if it
    is empty), averaged over the batch, as torch's CTCLoss does by default. So the size of a gradient does not
    depend on how long utterances are, one learning rate and one clipping bound serve short strings and
    sentences, and batches of different size combine by their number of utterances.
    """

    def __init__(self, config: SystemConfig, input_size: int, vocab_sizes: Mapping[str, int]) -> None:
        """`input_size`: features of a frame, or the vocabulary of a source text."""
        super().__init__()
        self.config, self.input_size, self.vocab_sizes = config, input_size, dict(vocab_sizes)
        self.normalisation = Normalisation(config.normalisation, input_size)
        self.encoder: Encoder = config.encoder.build(input_size)
        uppers = config.upper_encoders
        self.upper_encoders = nn.ModuleDict(
            {name: upper.encoder.build(config.tap_dim(upper.on)) for name, upper in uppers.items()}
        )
        self.heads = nn.ModuleDict(
            {
                text: CTCHead(config.tap_dim(head.on), self._vocab_size(f"heads.{text}", text))
                for text, head in config.heads.items()
            }
        )
        self.decoders = nn.ModuleDict(
            {
                name: decoder.build(
                    config.tap_dim(decoder.on),
                    self._vocab_size(f"decoders.{name}.text", decoder.text),
                )
                for name, decoder in config.decoders.items()
            }
        )

    def _vocab_size(self, key: str, text: str) -> int:
        if text not in self.vocab_sizes:
            raise ValueError(f"model.{key}: there are no tokens for the text {text!r}")
        return self.vocab_sizes[text]

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return next(self.parameters()).dtype

    @property
    def num_parameters(self) -> int:
        """How many numbers it has learnt."""
        return count_parameters(self)

    def decoder(self, kind: str) -> Any:
        """The decoder of a kind that says the text of decoding, or None."""
        name = self.config.decoder_name(kind)
        return None if name is None else self.decoders[name]

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        """The corpus's mean and deviation (F) of the features, for global normalisation."""
        self.normalisation.set_statistics(mean, std)

    def encode(self, source: Padded, trim: TrimConfig | None = None, at_least: Lengths = 1) -> Encoded:
        """Features as they were extracted, or tokens, through the encoder; trimmed if told how.

        Trimming leaves `at_least` so many frames, as `brctc.trimmed_lengths` has it.
        """
        self._check_source(source)
        encoded = Encoded(self)
        cut = None if trim is None else self._trimmer(encoded, trim, at_least)
        normalised = Padded(self.normalisation(*source), source.lengths)
        encoded.taps.update(self.encoder(normalised, cut))
        for name, upper in self.config.upper_encoders.items():
            encoded.taps[name] = self.upper_encoders[name](encoded.taps[upper.on])[FINAL]
        return encoded

    def _trimmer(self, encoded: Encoded, rule: TrimConfig, at_least: Lengths) -> Trim:
        if self.config.encoder.trims_at is None:
            raise ValueError(f"an encoder of kind {self.config.encoder.kind} cannot be trimmed")

        def cut(tap: str, hidden: Padded) -> Padded:
            encoded.taps[tap] = hidden
            logits, lengths = encoded.logits(tap, rule.text)
            found = trim_frames(
                hidden.values,
                lengths,
                logits,
                threshold=rule.threshold,
                margin=rule.margin,
                from_logits=True,
                at_least=at_least,
            )
            return Padded(*found)

        return cut

    def initial_state(self, streams: int) -> Any:
        """Of a streaming system, before the first chunk."""
        return self._streaming_encoder().initial_state(streams)

    def join_states(self, states: Sequence[Any]) -> Any:
        """The states of several streams as one batch."""
        return self._streaming_encoder().join_states(states)

    def step(self, features: Tensor, lengths: Tensor, state: Any) -> tuple[StreamOutput, Any]:
        """The next chunk of N streams, from extracted features to logits, and the state behind it.

        Pure: the same input gives the same output, and the state that was passed stays as it is.
        """
        encoder = self._streaming_encoder()
        head = _head_of(self.heads, self.config.output)  # pyright: ignore[reportArgumentType]
        self._check_source(Padded(features, lengths))
        hidden, state = encoder.step(self.normalisation(features, lengths), lengths, state)
        return StreamOutput(hidden, head(hidden.values)), state

    def _streaming_encoder(self) -> StreamingEncoder:
        if not isinstance(self.encoder, StreamingEncoder):
            kind = self.config.encoder.kind
            raise ValueError(f"streams need a streaming encoder (kind: emformer), the system has a {kind}")
        return self.encoder

    @torch.no_grad()
    def encoder_attention(self, source: Padded, trim: TrimConfig | None = None) -> list[Tensor]:
        """Each encoder layer's self-attention (H, T, T) on one utterance."""
        self._check_source(source)
        if len(source.values) != 1:
            raise ValueError(f"the source holds {len(source.values)} utterances, expected 1")
        maps = getattr(self.encoder, "attention_weights", None)
        if maps is None:
            kind = self.config.encoder.kind
            raise ValueError(f"an encoder of kind {kind} has no attention maps of whole utterances")
        training = self.training
        self.eval()
        encoded = Encoded(self)
        cut = None if trim is None else self._trimmer(encoded, trim, 1)
        try:
            weights = maps(Padded(self.normalisation(*source), source.lengths), cut)
        finally:
            self.train(training)
        return [layer[0] for layer in weights]

    def _check_source(self, source: Padded) -> None:
        values, lengths = source
        if self.config.encoder.input == "tokens":
            if values.dim() != 2 or values.is_floating_point():
                found = f"{values.dtype} {tuple(values.shape)}"
                raise ValueError(f"tokens are {found}, expected integers (N, T)")
        elif values.dim() != 3 or values.shape[2] != self.input_size:
            expected = f"(N, T, {self.input_size})"
            raise ValueError(f"features have shape {tuple(values.shape)}, expected {expected}")
        if lengths.shape != values.shape[:1]:
            raise ValueError(f"lengths have shape {tuple(lengths.shape)} for {len(values)} utterances")
        if lengths.is_cpu and not torch.compiler.is_compiling() and (lengths > values.shape[1]).any():
            n = int(lengths.argmax())
            raise ValueError(f"lengths[{n}] is {int(lengths[n])}, but there are {values.shape[1]} frames")


def _check_tap(key: str, tap: str, taps: Sequence[str]) -> None:
    if tap not in taps:
        raise KeyedError(key, f"there is no tap {tap!r}; the encoder has {', '.join(taps)}")


def _head_of(heads: Mapping[str, nn.Module], text: str) -> nn.Module:
    if text not in heads:
        raise ValueError(f"there is no CTC head for {text!r}: the system has {', '.join(heads) or 'none'}")
    return heads[text]


def count_parameters(module: nn.Module) -> int:
    """How many numbers a module learns."""
    return sum(parameter.numel() for parameter in module.parameters())
