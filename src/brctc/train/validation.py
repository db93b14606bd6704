"""A quick look at the development set while training."""

import torch

from brctc.data import Prepared, Tokenizer, make_batch, plan_batches
from brctc.decode import ctc_greedy
from brctc.evaluate.error_rate import error_rate
from brctc.models import System, TrimConfig
from brctc.train.config import Recipe
from brctc.train.distributed import Processes


@torch.no_grad()
def validate(
    system: System,
    dev: Prepared,
    tokenizer: Tokenizer,
    recipe: Recipe,
    trim: TrimConfig | None,
    processes: Processes,
) -> dict[str, float]:
    """Error rates of both CTC outputs, decoded greedily, and the down-sampling factor.

    The factor is what trimming by the intermediate posterior keeps, or would keep where the stage does
    not trim yet. Online systems have one output, which counts as both. Every process decodes a part.
    """
    step = max(1, len(dev.utterances) // recipe.monitor.dev_utterances)
    chosen = range(0, len(dev.utterances), step)[: recipe.monitor.dev_utterances]
    utterances = [dev.utterances[i] for i in chosen]
    batch_s = max(recipe.batch_s, *(utterance.duration_s for utterance in utterances))
    planned = plan_batches(utterances, batch_s, seed=0, epoch=0)
    rule = trim or TrimConfig.model_validate({})
    unit = "char" if recipe.tokens.kind == "char" else "word"
    texts: list[str] = []
    final: list[str] = []
    inter: list[str] = []
    kept = frames = 0
    system.eval()
    for indices in planned[processes.rank :: processes.count]:
        batch = make_batch(dev, [chosen[i] for i in indices], tokenizer)
        device = processes.device
        encoded = system.encode(batch.features.to(device), batch.lengths.to(device), trim)
        texts += batch.texts
        final += [tokenizer.decode(h.tokens) for h in ctc_greedy(encoded.logits, encoded.lengths)]
        inter += [tokenizer.decode(h.tokens) for h in ctc_greedy(encoded.inter_logits, encoded.inter_lengths)]
        kept += int(encoded.kept_lengths(rule).sum())
        frames += int(encoded.inter_lengths.sum())
    errors = [error_rate(texts, found, unit) for found in (final, inter)] if texts else []
    counts = [e.errors for e in errors] + [e.tokens for e in errors[:1]] if errors else [0, 0, 0]
    final_errors, inter_errors, tokens, kept, frames = processes.sum([*counts, kept, frames])
    return {
        "dev_error": final_errors / tokens,
        "dev_inter_error": inter_errors / tokens,
        "dev_factor": kept / frames,
    }
