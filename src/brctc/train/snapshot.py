"""Posteriors and gradients of a few utterances as a model learns (Fig. 5)."""

import json
from collections.abc import Sequence

import torch
from safetensors.torch import save

from brctc.files import write_bytes
from brctc.loss import bayes_risk_ctc_loss
from brctc.models import System
from brctc.train.config import CTCConfig
from brctc.train.factors import factor_at
from brctc.train.run_context import Moment, Run
from brctc.train.validation import load_examples


def write_snapshot(run: Run, moment: Moment, stage: str, ctc: CTCConfig, system: System) -> None:
    """One safetensors file: for utterance i, "i.posterior" and "i.gradient", (T, C) float16.

    They are of one CTC output; the gradient is that of its loss, with the risk of the moment, with respect
    to log_probs. The file's metadata hold ids, texts and where the run is as JSON.
    """
    step = moment.position.step
    count = min(run.recipe.monitor.snapshot_utterances, len(run.dev))
    tensors, ids, texts = {}, [], []
    for i in range(count):
        posterior, gradient = _look(run, system, ctc, step, [i])
        tensors[f"{i}.posterior"], tensors[f"{i}.gradient"] = posterior, gradient
        ids.append(run.dev.examples[i].id)
        texts.append(run.dev.examples[i].texts[ctc.text])
    metadata = {
        "ids": ids,
        "texts": texts,
        "step": moment.done,
        "stage": stage,
        "risk": ctc.risk.kind,
        "factor": factor_at(ctc.risk.factor, step),
    }
    path = run.files.snapshot_file(moment.done)
    write_bytes(path, save(tensors, {name: json.dumps(value) for name, value in metadata.items()}))


def _look(
    run: Run, system: System, ctc: CTCConfig, step: int, indices: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    was_training = system.training
    system.eval()
    batch = load_examples(run.dev, indices, run).to(system.device)
    with torch.no_grad():
        logits, lengths = system.encode(batch.source).logits(ctc.on, ctc.text)
    log_probs = logits.float().log_softmax(-1).transpose(0, 1).requires_grad_()
    targets = batch.targets[ctc.text]
    loss = bayes_risk_ctc_loss(
        log_probs, targets.values, lengths, targets.lengths, ctc.risk.at(step), reduction="sum"
    )
    (gradient,) = torch.autograd.grad(loss, log_probs)
    system.train(was_training)
    posterior = log_probs.detach()[:, 0].exp().half().cpu().contiguous()
    return posterior, gradient[:, 0].half().cpu().contiguous()
