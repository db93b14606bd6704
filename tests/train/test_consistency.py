"""CR-CTC's term: its value and gradient, copies of different lengths, and a training with it."""

import pytest
import torch

from brctc.data import Padded
from brctc.data.augment import AugmentConfig
from brctc.data.loading import augment_batch
from brctc.train import RecipeError, train
from brctc.train.losses import consistency_loss
from tests.models.toys import TEXT, toy_batch
from tests.train.tiny import PLAIN, tiny_recipe

LENGTHS, LABELS = torch.tensor([6, 4, 5, 4]), torch.tensor([2, 0, 2, 0])
"""Of two utterances, twice; trimming has left the second copy of the first shorter."""


def scores() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, 3, generator=generator, dtype=torch.double)
    logits[3, 4:] = torch.nan  # padding may hold anything
    return logits


def test_by_a_loop():
    logits = scores()
    expected = []
    for n, (frames, labels) in enumerate([(5, 2), (4, 1)]):
        p, q = (logits[k, :frames].softmax(-1) for k in (n, n + 2))
        divergence = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
        expected.append(divergence / 2 / labels)
    found = consistency_loss(Padded(logits, LENGTHS), LABELS)
    torch.testing.assert_close(found, torch.stack(expected).mean())


def test_each_copy_learns_from_the_other():
    """The gradient at the logits is that of a distillation: (q - p) / 2, per label, averaged."""
    logits = scores().requires_grad_()
    upstream = 1.7
    (gradient,) = torch.autograd.grad(upstream * consistency_loss(Padded(logits, LENGTHS), LABELS), logits)
    expected = torch.zeros_like(gradient)
    for n, (frames, labels) in enumerate([(5, 2), (4, 1)]):
        p, q = (logits[k, :frames].detach().softmax(-1) for k in (n, n + 2))
        scale = upstream / 2 / labels / 2
        expected[n, :frames], expected[n + 2, :frames] = scale * (p - q), scale * (q - p)
    torch.testing.assert_close(gradient, expected)


def test_equal_copies_agree():
    logits = scores()[:2].repeat(2, 1, 1)
    assert consistency_loss(Padded(logits, LENGTHS), LABELS).item() == pytest.approx(0, abs=1e-12)


def test_half_precision_is_computed_in_float():
    logits = scores().bfloat16()
    expected = consistency_loss(Padded(logits.float(), LENGTHS), LABELS)
    assert torch.equal(consistency_loss(Padded(logits, LENGTHS), LABELS), expected)


def test_a_training(tmp_path):
    """Both copies are in the batch, and become more alike."""
    losses = PLAIN | {"consistency": {"kind": "consistency", "weight": [[0, 0.0], [4, 0.2]]}}
    stages = {"only": {"steps": 6, "losses": losses}}
    with pytest.raises(RecipeError, match=r"stages\.only\.losses\.consistency: .* needs augment\.copies: 2"):
        tiny_recipe(tmp_path, stages=stages)
    augment = {"time_mask_length": 20, "frequency_mask_length": 2, "max_time_warp": 2, "copies": 2}
    recipe = tiny_recipe(tmp_path, stages=stages, augment=augment)
    run = train(recipe, tmp_path / "run", progress=False).parent
    log = (run / "metrics.jsonl").read_text()
    assert '"consistency"' in log


def test_targets_follow_their_copies():
    batch = toy_batch(dtype=torch.float, padding=0.0)
    config = AugmentConfig(copies=2, trim_tail_frames=8)
    found = augment_batch(batch, config, 1, torch.Generator().manual_seed(0))
    assert (len(found), found.copies, found.ids) == (6, 2, batch.ids * 2)
    first, second = found.source.lengths.chunk(2)
    assert torch.equal(first, second)
    assert (first < batch.source.lengths).any()
    assert torch.equal(found.targets[TEXT].values, batch.targets[TEXT].values.repeat(2, 1))
    one, other = found.source.values.chunk(2)
    assert not torch.equal(one, other)
