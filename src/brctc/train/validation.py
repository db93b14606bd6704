"""A quick look at the development set while training."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from brctc.data import Prepared
from brctc.data.batch import SOURCE, Batch, Padded, pad, source_length
from brctc.data.units import unit_of
from brctc.decode.ctc import ctc_greedy
from brctc.evaluate.error_rate import error_rate
from brctc.models import System
from brctc.models.attention_decoder import AttentionDecoder
from brctc.models.system import Encoded
from brctc.train.config import CTCConfig, Stage
from brctc.train.objective import TOTAL, Objective
from brctc.train.run_context import Run

BATCH = 16


@torch.no_grad()
def validate(objective: Objective, run: Run, stage: Stage, step: int) -> dict[str, Any]:
    """The loss; for every CTC of the stage, the error rate when it is decoded greedily; for every attention
    decoder, the accuracy of its next token (and of the end), given the true ones before it.

    "dev_error" is the error rate of the last CTC, "dev_errors" has all by name, "dev_texts" the texts that
    they are of. "dev_accuracy" is the accuracy of the decoder that says what decoding gives, or else of the
    last one, "dev_accuracies" has all by name. "dev_factor" is what trimming keeps, or would keep where the
    stage does not trim yet, if the encoder can be trimmed. Every process does a part.
    """
    system = objective.system
    ctcs = {name: loss for name, loss in stage.losses.items() if isinstance(loss, CTCConfig)}
    texts: dict[str, list[str]] = {name: [] for name in ctcs}
    found: dict[str, list[str]] = {name: [] for name in ctcs}
    accuracy = _Accuracy(system)
    total, count, kept, frames = 0.0, 0, 0, 0
    system.eval()
    for batch in _batches(run):
        losses = objective(batch, step)
        total += float(losses[TOTAL]) * len(batch)
        count += len(batch)
        encoded = system.encode(batch.source, stage.trim)
        for name, ctc in ctcs.items():
            logits = encoded.logits(ctc.on, ctc.text)
            texts[name] += batch.texts[ctc.text]
            tokenizer = run.tokenizers[ctc.text]
            found[name] += [tokenizer.decode(h.tokens) for h in ctc_greedy(*logits)]
        accuracy.add(encoded, batch)
        of_batch = _kept(system, encoded, stage)
        kept, frames = kept + of_batch[0], frames + of_batch[1]
    counts = []
    for name, ctc in ctcs.items():
        unit = unit_of(run.tokenizers[ctc.text].kind)
        error = error_rate(texts[name], found[name], unit) if texts[name] else None
        counts += [error.errors, error.tokens] if error else [0, 0]
    sums = run.processes.sum([total, count, kept, frames, *accuracy.counts, *counts])
    (total, examples, kept, frames), sums = sums[:4], sums[4:]
    accuracies, counts = accuracy.rates(sums), sums[len(accuracy.counts) :]
    errors = {name: counts[2 * i] / counts[2 * i + 1] for i, name in enumerate(ctcs)}
    result: dict[str, Any] = {"dev_loss": total / examples}
    if errors:
        said = {name: ctc.text for name, ctc in ctcs.items()}
        result |= {"dev_error": list(errors.values())[-1], "dev_errors": errors, "dev_texts": said}
    if accuracies:
        result |= {"dev_accuracy": accuracies[accuracy.main], "dev_accuracies": accuracies}
    return result | ({"dev_factor": kept / frames} if frames else {})


class _Accuracy:
    """Of the attention decoders' next tokens."""

    def __init__(self, system: System) -> None:
        self.decoders = {
            name: (decoder, system.config.decoders[name])
            for name, decoder in system.decoders.items()
            if isinstance(decoder, AttentionDecoder)
        }
        self.main = system.config.decoder_name("attention") or next(reversed(self.decoders), "")
        self.counts = [0] * (2 * len(self.decoders))
        """Right ones and all, of each decoder."""

    def add(self, encoded: Encoded, batch: Batch) -> None:
        """Counts those of a batch."""
        found = [
            count
            for name, (decoder, config) in self.decoders.items()
            for count in decoder.count_right(encoded.memory(name), batch.targets[config.text])
        ]
        self.counts = [before + count for before, count in zip(self.counts, found, strict=True)]

    def rates(self, counts: Sequence[float]) -> dict[str, float]:
        """By the decoders' names, of what all processes have counted."""
        return {name: counts[2 * i] / counts[2 * i + 1] for i, name in enumerate(self.decoders)}


def _kept(system: System, encoded: Encoded, stage: Stage) -> tuple[int, int]:
    """Frames that trimming keeps or would keep, and all; none of an encoder that cannot be trimmed."""
    tap, rule = system.config.encoder.trims_at, system.config.trim_rule(stage.trim)
    if tap is None or rule is None:
        return 0, 0
    return int(encoded.kept_lengths(tap, rule).sum()), int(encoded.taps[tap].lengths.sum())


def _batches(run: Run) -> Iterator[Batch]:
    """Some utterances, spread over the development set, short ones together."""
    dev, wanted = run.dev, run.recipe.monitor.dev_utterances
    chosen = range(0, len(dev), max(1, len(dev) // wanted))[:wanted]
    order = sorted(chosen, key=lambda i: source_length(dev.examples[i]))
    groups = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
    for group in groups[run.processes.rank :: run.processes.count]:
        yield load_examples(dev, group, run).to(run.processes.device)


def load_examples(prepared: Prepared, indices: Any, run: Run) -> Batch:
    """Examples of a split in memory, as a batch."""
    examples = [prepared.examples[i] for i in indices]
    texts = {name: [example.texts[name] for example in examples] for name in run.tokenizers}
    targets = {
        name: pad([torch.tensor(run.tokenizers[name].encode(text), dtype=torch.long) for text in texts[name]])
        for name in texts
    }
    source: Padded
    if prepared.storage.kind == "text":
        source = targets[SOURCE]
    else:
        source = pad([torch.from_numpy(prepared.features(i)) for i in indices])
    return Batch([example.id for example in examples], source, texts, targets)
