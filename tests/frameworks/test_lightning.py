"""Lightning, the package itself: `make test-integrations`. The module is the documented one."""

import pytest
import torch

import brctc
from tests.frameworks.documented import snippet

lightning = pytest.importorskip("lightning")


def loader():
    generator = torch.Generator().manual_seed(0)
    batch = (
        torch.randn(4, 30, 80, generator=generator),
        torch.randint(1, 30, (4, 5), generator=generator),
        torch.tensor([30, 30, 20, 25]),
        torch.tensor([5, 4, 5, 3]),
    )
    return torch.utils.data.DataLoader([batch] * 6, batch_size=None)


def trainer(folder, steps):
    return lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )


def test_training_checkpoint_and_hyper_parameters(tmp_path):
    """A reloaded run has the factor that it had, and goes on from there."""
    torch.manual_seed(0)
    kind = snippet("Recognizer")["Recognizer"]
    model = kind(factor=8.0)
    first = trainer(tmp_path, 4)
    first.fit(model, loader())
    first.save_checkpoint(tmp_path / "model.ckpt")
    assert model.criterion.risk == brctc.EarlyEmission(8.0 - 4 * 6.0 / 1000)
    again = kind.load_from_checkpoint(tmp_path / "model.ckpt")
    assert again.hparams.factor == 8.0
    assert again.criterion.risk == model.criterion.risk
    other = kind(factor=8.0)
    trainer(tmp_path, 6).fit(other, loader(), ckpt_path=tmp_path / "model.ckpt")
    assert other.schedule.last_step == 6
