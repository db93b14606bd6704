"""The CTC modules of ESPnet and FunASR, the packages themselves: `make test-integrations`."""

import importlib

import pytest
import torch

import brctc

MODULES = {"espnet2.asr.ctc": {}, "funasr.models.ctc.ctc": {"ignore_nan_grad": False}}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_takes_the_criterion(name):
    pytest.importorskip(name.partition(".")[0])
    kind = importlib.import_module(name).CTC
    torch.manual_seed(0)
    module = kind(odim=12, encoder_output_size=8, **MODULES[name])
    hidden, targets = torch.randn(3, 20, 8), torch.randint(1, 12, (3, 5))
    lengths, counts = torch.tensor([20, 17, 12]), torch.tensor([5, 3, 4])
    expected = module(hidden, lengths, targets, counts)
    found = []
    for risk in (None, brctc.EarlyFinish(5.0)):
        module.ctc_loss = brctc.BayesRiskCTCLoss(risk, reduction="none", zero_infinity=True)
        found.append(module(hidden, lengths, targets, counts))
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)
    assert found[1] > found[0]
    found[1].backward()
    assert module.ctc_lo.weight.grad.abs().sum() > 0
