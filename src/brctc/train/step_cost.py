"""What one step costs: a forward and backward pass on torch's meta device, which has shapes and no numbers.

The recursion of CTC is left out: it has no products, and takes about 1% of a step (train.log tells it of
every run). What it keeps of its scores is counted. Trimming depends on numbers: nothing is trimmed here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from brctc.data.batch import SOURCE, Batch, Padded
from brctc.models import System, count_parameters
from brctc.train.config import Recipe, Stage
from brctc.train.factors import is_zero
from brctc.train.losses import CTCConfig, Forward

BF16_SHARE = 0.6
"""Of what float32 keeps for the backward pass: autocast leaves norms, softmaxes and losses in float32."""


@dataclass(frozen=True)
class Sizes:
    """What of the data decides how large a system is."""

    input_size: int
    """Features of a frame, or the vocabulary of a source text."""
    vocab_sizes: Mapping[str, int]


@dataclass(frozen=True)
class BatchShape:
    """A padded batch, or a part of one."""

    examples: int
    frames: int
    """Of the longest source; its tokens, if it is a text."""
    labels: Mapping[str, int]
    """Of the longest text, by name."""

    @property
    def size(self) -> int:
        """Frames of all examples, padding included."""
        return self.examples * self.frames


@dataclass(frozen=True)
class StepCost:
    """Of one part of a batch."""

    flop: float
    activation_bytes: float


def synthetic_batch(recipe: Recipe, shape: BatchShape, sizes: Sizes, device: torch.device | str) -> Batch:
    """Noise and random labels, all as long as the longest."""
    n, tokens = shape.examples, recipe.corpus.input == "text"
    lengths = torch.full((n,), shape.frames, device=device)
    source = (
        torch.randint(1, sizes.input_size, (n, shape.frames), device=device)
        if tokens
        else torch.randn(n, shape.frames, sizes.input_size, device=device)
    )
    targets = {
        text: Padded(
            torch.randint(1, sizes.vocab_sizes[text], (n, labels), device=device),
            torch.full((n,), labels, device=device),
        )
        for text, labels in shape.labels.items()
    }
    padded = Padded(source, lengths)
    if tokens:
        targets[SOURCE] = padded
    return Batch([f"{i}" for i in range(n)], padded, {}, targets)


def build_on_meta(recipe: Recipe, stage: Stage, sizes: Sizes) -> System:
    """The system of a stage without its numbers."""
    with torch.device("meta"):
        return System(recipe.system_of(stage), sizes.input_size, sizes.vocab_sizes)


def parameters_by_part(system: System) -> dict[str, int]:
    """Of the encoder, each head and so on; parts without any are left out."""
    parts: dict[str, nn.Module] = {"encoder": system.encoder}
    for what, several in (
        ("upper encoder", system.upper_encoders),
        ("CTC head", system.heads),
        ("decoder", system.decoders),
    ):
        parts |= {f"{what} {name}": module for name, module in several.items()}
    return {name: count for name, part in parts.items() if (count := count_parameters(part))}


def cost_of_step(recipe: Recipe, stage: Stage, sizes: Sizes, shape: BatchShape) -> StepCost:
    """Of a forward and backward pass with all losses of the stage."""
    try:
        return _count(recipe, stage, sizes, shape, "meta")
    except (NotImplementedError, RuntimeError):  # a part from outside that looks at numbers
        one = _count(recipe, stage, sizes, replace(shape, examples=1), "cpu")
        return StepCost(shape.examples * one.flop, shape.examples * one.activation_bytes)


def _count(recipe: Recipe, stage: Stage, sizes: Sizes, shape: BatchShape, device: str) -> StepCost:
    with torch.device(device):
        system = System(recipe.system_of(stage), sizes.input_size, sizes.vocab_sizes)
        batch = synthetic_batch(recipe, shape, sizes, device)
        kept = _Kept(system)
        with FlopCounterMode(display=False) as counter:
            with torch.autograd.graph.saved_tensors_hooks(kept.add, lambda tensor: tensor):
                loss = _losses(system, stage, batch)
            loss.backward()
    share = BF16_SHARE if recipe.precision == "bf16" else 1.0
    return StepCost(float(counter.get_total_flops()), share * kept.total_bytes)


def _losses(system: System, stage: Stage, batch: Batch) -> Tensor:
    """What `Objective` sums up, but for the recursion of CTC."""
    forward = Forward(system, system.encode(batch.source), batch)
    terms = []
    for config in stage.losses.values():
        if isinstance(config, CTCConfig):
            terms.append(forward.encoded.logits(config.on, config.text).values.square().mean())
        elif not is_zero(config.weight):
            terms.append(config.build()(forward, 0))
    return torch.stack(terms).sum()


class _Kept:
    """The memory behind what autograd keeps for the backward pass, each piece once, parameters aside."""

    def __init__(self, system: System) -> None:
        self._known = {parameter.untyped_storage()._cdata for parameter in system.parameters()}
        self._kept: list[torch.UntypedStorage] = []  # alive, or another would have its address
        self.total_bytes = 0

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self._kept.append(storage)
            self.total_bytes += storage.nbytes()
        return tensor
