"""The criterion in the shapes of frameworks whose call differs from torch's; none of them is imported here.

`docs/integrations.md` shows how each takes it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from brctc.kernels.reduction import ReductionKind
from brctc.kernels.tensors import Lengths, Nonfinite
from brctc.loss import bayes_risk_ctc_loss
from brctc.risk import BayesRisk
from brctc.transducer import transducer_loss


@dataclass
class TransformersCTCLoss:
    """A `loss_function` for CTC models of Hugging Face transformers.

    >>> model.loss_function = TransformersCTCLoss(brctc.EarlyEmission(20.0))

    A model calls it with its logits, and its config says blank, reduction and zero_infinity. It is no
    nn.Module: torch would make that a part of the model, whose own loss would go on being used.
    """

    risk: BayesRisk | None = None
    nonfinite: Nonfinite = "raise"

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        logit_lengths: Lengths,
        blank_token_id: int,
        reduction: ReductionKind = "mean",
        zero_infinity: bool = False,
        ignore_index: int = -100,
        **unused: Any,
    ) -> Tensor:
        """logits: (N, T, C); labels: (N, U), with `ignore_index` or blanks where there are none."""
        labels = labels.to(logits.device)
        targets, lengths = pack_labels(labels, (labels != ignore_index) & (labels != blank_token_id))
        return bayes_risk_ctc_loss(
            logits.transpose(0, 1),
            targets,
            logit_lengths,
            lengths,
            self.risk,
            blank=blank_token_id,
            reduction=reduction,
            zero_infinity=zero_infinity,
            from_logits=True,
            nonfinite=self.nonfinite,
        )


def pack_labels(labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The labels of each row that are kept, moved to its beginning, and how many there are."""
    order = torch.argsort((~kept).int(), dim=1, stable=True)
    lengths = kept.sum(1)
    targets = labels.gather(1, order)[:, : max(1, int(lengths.max()))]
    return targets, lengths


def speechbrain_ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lens: Tensor,
    target_lens: Tensor,
    blank_index: int,
    reduction: str = "mean",
    risk: BayesRisk | None = None,
) -> Tensor:
    """speechbrain.nnet.losses.ctc_loss, with a risk: batch first, lengths as shares of the longest.

    reduction: "mean", "sum", "none", "batchmean", or "batch", which is "none" in SpeechBrain's words.
    """
    kinds: dict[str, ReductionKind] = {
        "mean": "mean",
        "sum": "sum",
        "none": "none",
        "batch": "none",
        "batchmean": "batchmean",
    }
    if reduction not in kinds:
        raise ValueError(f"reduction is {reduction!r}, expected one of {', '.join(kinds)}")
    return bayes_risk_ctc_loss(
        log_probs.transpose(0, 1),
        targets,
        (input_lens * log_probs.shape[1]).round().int(),
        (target_lens * targets.shape[1]).round().int(),
        risk,
        blank=blank_index,
        reduction=kinds[reduction],
        zero_infinity=True,
    )


class NeMoCTCLoss(nn.Module):
    """NeMo's CTC loss, with a risk: batch first, the blank behind all classes.

    >>> model.loss = NeMoCTCLoss(num_classes=model.decoder.num_classes_with_blank - 1, risk=risk)
    """

    def __init__(
        self,
        num_classes: int,
        zero_infinity: bool = False,
        reduction: str = "mean_batch",
        risk: BayesRisk | None = None,
    ) -> None:
        super().__init__()
        self._kind: ReductionKind = _nemo_reduction(reduction)
        self.num_classes, self.zero_infinity, self.reduction = num_classes, zero_infinity, reduction
        self.risk: BayesRisk | None = risk

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """log_probs: (N, T, C); targets: (N, U)."""
        losses = bayes_risk_ctc_loss(
            log_probs.transpose(0, 1),
            targets,
            input_lengths,
            target_lengths,
            self.risk,
            blank=self.num_classes,
            reduction=self._kind,
            zero_infinity=self.zero_infinity,
        )
        return losses.sum() / target_lengths.sum() if self.reduction == "mean_volume" else losses


class NeMoTransducerLoss(nn.Module):
    """What NeMo's `RNNTLoss` computes with, on the CPU and on GPUs, in bfloat16 too.

    >>> model.loss._loss = NeMoTransducerLoss(blank=model.loss._blank)
    >>> model.joint.set_loss(model.loss)
    """

    def __init__(self, blank: int = -1, clamp: float = -1) -> None:
        super().__init__()
        self.blank, self.clamp = blank, clamp
        self.reduction: str | None = None
        """NeMo sets it to None and reduces the losses itself."""

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        """acts: (N, T, U + 1, C) logits."""
        return transducer_loss(
            acts,
            labels,
            act_lens,
            label_lens,
            blank=self.blank,
            clamp=self.clamp,
            reduction=_nemo_reduction(self.reduction or "none"),
        )


def _nemo_reduction(name: str) -> ReductionKind:
    """A reduction in NeMo's words; "mean_volume" is made of single losses."""
    kinds: dict[str, ReductionKind] = {
        "mean_batch": "batchmean",
        "mean_volume": "none",
        "mean": "mean",
        "sum": "sum",
        "none": "none",
    }
    if name not in kinds:
        raise ValueError(f"reduction is {name!r}, expected one of {', '.join(kinds)}")
    return kinds[name]
