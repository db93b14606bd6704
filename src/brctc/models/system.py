"""A whole system: features in, losses or decoder inputs out."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from brctc.align import frames_needed
from brctc.loss import bayes_risk_ctc_loss
from brctc.models.attention_decoder import AttentionDecoder
from brctc.models.config import EmformerConfig, SystemConfig, TrimConfig
from brctc.models.encoder import Encoded, Encoder
from brctc.models.normalisation import Normalisation
from brctc.models.online_encoder import OnlineEncoder
from brctc.models.peak_first import peak_first_loss
from brctc.models.transducer import Transducer
from brctc.risk import BayesRisk


class Batch(Protocol):
    """What a system learns from."""

    @property
    def features(self) -> Tensor:
        """(N, T, F)"""
        ...

    @property
    def lengths(self) -> Tensor:
        """(N), frames."""
        ...

    @property
    def targets(self) -> Tensor:
        """(N, U), padded with 0."""
        ...

    @property
    def target_lengths(self) -> Tensor:
        """(N)"""
        ...


@dataclass(frozen=True)
class Objective:
    """What one stage of training minimises:

    ctc_weight * ((1 - inter_weight) * (ctc + peak_first * peak_first_loss) + inter_weight * inter_ctc)
    + attention_weight * attention + transducer_weight * transducer

    Weights that are None are table 3's: ctc 0.3 and attention 0.7, or ctc 0.5 and transducer 1.0, or
    ctc 1.0 where there is no decoder. A part of weight 0 is not computed. An online system has one CTC
    output, the final one: its inter_weight must be 0, and it is not trimmed.
    """

    inter_risk: BayesRisk | None = None
    final_risk: BayesRisk | None = None
    trim: TrimConfig | None = None
    inter_weight: float = 0.3
    ctc_weight: float | None = None
    attention_weight: float | None = None
    transducer_weight: float | None = None
    peak_first: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.inter_weight <= 1:
            raise ValueError(f"inter_weight is {self.inter_weight}, expected 0 to 1")
        for name in ("ctc_weight", "attention_weight", "transducer_weight", "peak_first"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}, expected 0 or more")

    def weights(self, system: SystemConfig) -> dict[str, float]:
        """The weights of "inter_ctc", "ctc", "peak_first", "attention" and "transducer", 0 left out."""
        if system.online and self.inter_weight:
            raise ValueError(f"inter_weight is {self.inter_weight}, but an emformer has one CTC: say 0")
        if system.online and self.trim:
            raise ValueError("an emformer has no second half to trim for: trim must be None")
        has = {"attention": system.attention is not None, "transducer": system.transducer is not None}
        given = {"attention": self.attention_weight, "transducer": self.transducer_weight}
        for name, weight in given.items():
            if weight and not has[name]:
                raise ValueError(f"{name}_weight is {weight}, but the system has no {name} part")
        if all(has.values()) and None in (self.ctc_weight, *given.values()):
            raise ValueError("a system with both decoders has no usual weights: give all three")
        usual = {"ctc": 1.0, "attention": 0.7, "transducer": 1.0}
        if has["transducer"]:
            usual["ctc"] = 0.5
        elif has["attention"]:
            usual["ctc"] = 0.3
        ctc = usual["ctc"] if self.ctc_weight is None else self.ctc_weight
        weights = {"inter_ctc": ctc * self.inter_weight, "ctc": ctc * (1 - self.inter_weight)}
        weights["peak_first"] = weights["ctc"] * self.peak_first
        for name, weight in given.items():
            weights[name] = (usual[name] if weight is None else weight) if has[name] else 0.0
        if not any(weights.values()):
            raise ValueError("every weight is 0: there is nothing to learn")
        return {name: weight for name, weight in weights.items() if weight > 0}


class System(nn.Module):
    """Normalisation, the encoder with its two CTC outputs (online: one), and the decoders behind it.

    Every loss is in nats per label: an utterance's nats divided by its target length (1 if it is
    empty), averaged over the batch, as torch's CTCLoss does by default. So the size of a gradient
    does not depend on how long utterances are: one learning rate and one clipping bound serve short
    strings and sentences, and batches of different size combine by their number of utterances. All
    parts are divided alike, so the paper's weights keep their meaning, and so does a risk factor,
    which is weighed against the nats of its own utterance.
    """

    def __init__(self, config: SystemConfig, feature_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.feature_dim = feature_dim
        self.vocab_size = vocab_size
        self.normalisation = Normalisation(config.normalisation, feature_dim)
        if isinstance(config.encoder, EmformerConfig):
            self.encoder = OnlineEncoder(config.encoder, feature_dim, vocab_size)
        else:
            self.encoder = Encoder(config.encoder, feature_dim, vocab_size)
        dim = config.encoder.dim
        self.attention = AttentionDecoder(config.attention, dim, vocab_size) if config.attention else None
        self.transducer = Transducer(config.transducer, dim, vocab_size) if config.transducer else None

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        """The corpus's mean and deviation (F) of the features, for global normalisation."""
        self.normalisation.set_statistics(mean, std)

    def encode(self, features: Tensor, lengths: Tensor, trim: TrimConfig | None = None) -> Encoded:
        """(N, T, F) features as they were extracted to the encoder's output, trimmed if told how."""
        self._check_features(features, lengths)
        return self.encoder(self.normalisation(features, lengths), lengths, trim)

    def forward(self, batch: Batch, objective: Objective) -> dict[str, Tensor]:
        """ "loss", to be minimised, and for the log its parts, "inter_ctc", "ctc", "peak_first",
        "attention" and "transducer"; with trimming also "factor": frames kept, of all."""
        self._check_features(batch.features, batch.lengths)
        weights = objective.weights(self.config)
        targets, target_lengths = batch.targets, batch.target_lengths
        # Trimming must not make a loss infinite: an utterance keeps the frames its labels need.
        needed = frames_needed(targets, target_lengths) if objective.trim else 1
        features = self.normalisation(batch.features, batch.lengths)
        encoded = self.encoder(features, batch.lengths, objective.trim, needed)
        decoder_inputs = (encoded.hidden, encoded.lengths, targets, target_lengths)

        parts: dict[str, Tensor] = {}
        for name in weights:
            if name == "inter_ctc":
                risk, logits, lengths = objective.inter_risk, encoded.inter_logits, encoded.inter_lengths
                parts[name] = ctc_loss(logits, lengths, targets, target_lengths, risk)
            elif name == "ctc":
                risk, logits, lengths = objective.final_risk, encoded.logits, encoded.lengths
                parts[name] = ctc_loss(logits, lengths, targets, target_lengths, risk)
            elif name == "peak_first":
                parts[name] = peak_first_loss(encoded.logits, encoded.lengths, target_lengths)
            elif name == "attention":
                assert self.attention is not None  # or it would have no weight
                parts[name] = self.attention.loss(*decoder_inputs)
            else:
                assert self.transducer is not None
                parts[name] = self.transducer.loss(*decoder_inputs)
        loss = torch.stack([weight * parts[name] for name, weight in weights.items()]).sum()
        result = {"loss": loss} | {name: part.detach() for name, part in parts.items()}
        if objective.trim:
            result["factor"] = encoded.lengths.sum() / encoded.inter_lengths.sum()
        return result

    @torch.no_grad()
    def encoder_attention(
        self, features: Tensor, lengths: Tensor, trim: TrimConfig | None = None
    ) -> list[Tensor]:
        """Each encoder layer's self-attention (H, T, T) on one utterance, (1, T, F) features."""
        self._check_features(features, lengths)
        if len(features) != 1:
            raise ValueError(f"features hold {len(features)} utterances, expected 1")
        if isinstance(self.encoder, OnlineEncoder):
            raise ValueError("an emformer attends to chunks: there are no maps of whole utterances")
        training = self.training
        self.eval()
        try:
            weights = self.encoder.attention_weights(self.normalisation(features, lengths), lengths, trim)
        finally:
            self.train(training)
        return [weight[0] for weight in weights]

    def _check_features(self, features: Tensor, lengths: Tensor) -> None:
        if features.dim() != 3 or features.shape[2] != self.feature_dim:
            expected = f"(N, T, {self.feature_dim})"
            raise ValueError(f"features have shape {tuple(features.shape)}, expected {expected}")
        if lengths.shape != features.shape[:1]:
            raise ValueError(f"lengths have shape {tuple(lengths.shape)} for {len(features)} utterances")
        if lengths.is_cpu and not torch.compiler.is_compiling() and (lengths > features.shape[1]).any():
            n = int(lengths.argmax())
            raise ValueError(f"lengths[{n}] is {int(lengths[n])}, but there are {features.shape[1]} frames")


def ctc_loss(
    logits: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, risk: BayesRisk | None
) -> Tensor:
    """Bayes-risk CTC of (N, T, C) logits, in nats per label."""
    return bayes_risk_ctc_loss(
        logits.transpose(0, 1), targets, lengths, target_lengths, risk, from_logits=True
    )


def count_parameters(module: nn.Module) -> int:
    """How many numbers a module learns."""
    return sum(parameter.numel() for parameter in module.parameters())
