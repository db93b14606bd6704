"""Hugging Face transformers and Accelerate, the packages themselves: `make test-integrations`."""

import subprocess
import sys

import pytest
import torch

import brctc
from brctc.integrations import TransformersCTCLoss
from tests.documents import ROOT

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SMALL = {
    "vocab_size": 20,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_conv_pos_embedding_groups": 4,
    "num_conv_pos_embeddings": 16,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 8),
    "conv_stride": (20, 16),
    "ctc_zero_infinity": True,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
}


def make_model(**changes):
    torch.manual_seed(0)
    return transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**SMALL | changes))


def make_batch(count=4):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(1, 20, (count, 6), generator=generator)
    labels[1, 3:] = -100
    return {"input_values": torch.randn(count, 16000, generator=generator), "labels": labels}


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_is_the_models_own_without_a_risk(reduction):
    model, batch = make_model(ctc_loss_reduction=reduction).eval(), make_batch()
    losses, gradients = [], []
    for criterion in (None, TransformersCTCLoss()):
        if criterion is not None:
            model.loss_function = criterion
        loss = model(**batch).loss
        losses.append(loss)
        gradients.append(torch.autograd.grad(loss, model.lm_head.weight)[0])
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    model.loss_function = TransformersCTCLoss(brctc.EarlyFinish(20.0))
    assert model(**batch).loss > losses[0] + 1


class Utterances(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        batch = make_batch(2)
        return {
            name: value[index % 2] * (1 + index / 64 if name == "input_values" else 1)
            for name, value in batch.items()
        }


def train(folder, model, steps=20, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Utterances())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("bf16", [False, True])
def test_trainer(tmp_path, bf16):
    model = make_model()
    model.loss_function = TransformersCTCLoss(brctc.EarlyEmission(20.0))
    losses = train(tmp_path, model, bf16=bf16)
    assert len(losses) == 20
    assert losses[-1] < losses[0]


def test_overflow_in_float16_skips_the_step():
    """A real overflow: logits of float16 beyond 65504; the scaler halves its scale, the weights stay."""
    model, batch = make_model(), make_batch()
    model.loss_function = TransformersCTCLoss(brctc.EarlyEmission(20.0), nonfinite="nan")
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with torch.no_grad():
        model.lm_head.weight.mul_(1e7)
    before = model.lm_head.weight.clone()
    with torch.autocast("cpu", torch.float16):
        loss = model(**batch).loss
    assert not loss.isfinite()
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert torch.equal(model.lm_head.weight, before)


TWO = """
import torch
from accelerate import Accelerator
from tests.frameworks.test_transformers import make_batch, make_model, TransformersCTCLoss, brctc

accelerator = Accelerator(cpu=True)
model = make_model().eval()  # without dropout
model.loss_function = TransformersCTCLoss(brctc.EarlyEmission(20.0))
model, optimiser = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-3))
batch = make_batch()
rank, world = accelerator.process_index, accelerator.num_processes
mine = {name: value[rank * 4 // world : (rank + 1) * 4 // world] for name, value in batch.items()}
accelerator.backward(model(**mine).loss * world / 4)
optimiser.step()
if accelerator.is_main_process:
    weights = accelerator.unwrap_model(model).state_dict()
    torch.save(weights, f"weights-{world}.pt")
"""


def test_two_processes_with_accelerate(tmp_path, monkeypatch):
    """Half of a batch each is the whole batch."""
    (tmp_path / "two.py").write_text(TWO)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for count in (1, 2):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(count),
        ]
        subprocess.run([*command, "two.py"], cwd=tmp_path, check=True, timeout=240)
    one, two = (torch.load(tmp_path / f"weights-{count}.pt") for count in (1, 2))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-4, atol=1e-6)
