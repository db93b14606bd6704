"""What a stage minimises: a system and the weighted sum of its losses."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from brctc.align import frames_needed
from brctc.data.batch import Batch
from brctc.models.base import FINAL, TrimConfig
from brctc.models.system import System
from brctc.train.factors import factor_at
from brctc.train.losses.base import Forward, LossConfig

TOTAL, FACTOR = "loss", "factor"
"""Names of the sum, and of the share of frames that trimming keeps."""


class Objective(nn.Module):
    """A system with the losses of a stage: what DistributedDataParallel is wrapped around.

    A loss whose weight is 0 at a step is not computed.
    """

    def __init__(
        self, system: System, losses: Mapping[str, LossConfig], trim: TrimConfig | None = None
    ) -> None:
        super().__init__()
        self.system, self.trim = system, trim
        self.configs = dict(losses)
        self.refused = ""
        """What a loss has said of scores that it could not take; the sum is NaN then."""
        self.losses = nn.ModuleDict({name: config.build() for name, config in losses.items()})

    def names(self, step: int) -> list[str]:
        """What `forward` gives at a step, but the sum."""
        weighed = [name for name, config in self.configs.items() if factor_at(config.weight, step) > 0]
        return weighed + ([FACTOR] if self.trim is not None else [])

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """ "loss", to be minimised, and for the log its terms by name; with trimming also "factor": frames
        kept, of all."""
        encoded = self.system.encode(batch.source, self.trim, self._needed(batch))
        forward = Forward(self.system, encoded, batch)
        weights = {name: factor_at(config.weight, step) for name, config in self.configs.items()}
        try:
            terms = {name: self.losses[name](forward, step) for name, weight in weights.items() if weight > 0}
        except ValueError as error:  # a loss refuses NaN and names its place
            self.refused = str(error)
            return {TOTAL: math.nan * encoded.final.values.sum()}  # every process goes on to the same end
        weighted = [weights[name] * term for name, term in terms.items()]
        nothing = 0.0 * encoded.final.values.sum()  # all weights may be 0 at some step
        result = {TOTAL: torch.stack(weighted).sum() if weighted else nothing}
        result |= {name: term.detach() for name, term in terms.items()}
        if self.trim is not None:
            tap = self.system.config.encoder.trims_at or FINAL
            result[FACTOR] = encoded.final.lengths.sum() / encoded.taps[tap].lengths.sum()
        return result

    def _needed(self, batch: Batch) -> Tensor | int:
        """Trimming must not make a loss infinite: an utterance keeps the frames that its labels need."""
        texts = {config.ctc_text for config in self.configs.values() if config.ctc_text is not None}
        if self.trim is None or not texts:
            return 1
        needed = [frames_needed(*batch.targets[text]) for text in sorted(texts)]
        return torch.stack(needed).amax(0)
