"""Posteriors and gradients of a few utterances as a model learns (Fig. 5)."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save

from brctc.data import Prepared, Tokenizer, make_batch
from brctc.files import write_bytes
from brctc.loss import bayes_risk_ctc_loss
from brctc.models import System
from brctc.risk import BayesRisk


def write_snapshot(
    path: Path,
    system: System,
    prepared: Prepared,
    tokenizer: Tokenizer,
    indices: Sequence[int],
    risk: BayesRisk | None,
    description: dict[str, object],
) -> None:
    """One safetensors file: for utterance i of `indices`, "i.posterior" and "i.gradient", (T, C) float16.

    The posterior is the intermediate CTC's, online the only one's; the gradient is that of its loss,
    with the risk of the moment, with respect to log_probs. The file's metadata hold ids, texts and the
    description as JSON.
    """
    was_training = system.training
    system.eval()
    device = next(system.parameters()).device
    tensors, ids, texts = {}, [], []
    for i, index in enumerate(indices):
        batch = make_batch(prepared, [index], tokenizer)
        with torch.no_grad():
            encoded = system.encode(batch.features.to(device), batch.lengths.to(device), None)
        log_probs = encoded.inter_logits.float().log_softmax(-1).transpose(0, 1).requires_grad_()
        loss = bayes_risk_ctc_loss(
            log_probs, batch.targets, encoded.inter_lengths, batch.target_lengths, risk, reduction="sum"
        )
        (gradient,) = torch.autograd.grad(loss, log_probs)
        tensors[f"{i}.posterior"] = log_probs.detach()[:, 0].exp().half().cpu().contiguous()
        tensors[f"{i}.gradient"] = gradient[:, 0].half().cpu().contiguous()
        ids.append(batch.ids[0])
        texts.append(batch.texts[0])
    system.train(was_training)
    metadata = {"ids": ids, "texts": texts, **description}
    write_bytes(path, save(tensors, {name: json.dumps(value) for name, value in metadata.items()}))
