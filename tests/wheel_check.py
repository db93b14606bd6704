"""What is asked of an installed wheel: the native core is there, and right. Needs torch alone."""

import sys

import torch

import brctc


def main() -> None:
    state = brctc.backends()["cpu"]
    assert state.startswith("ok"), state
    torch.manual_seed(0)
    logits = torch.randn(50, 3, 12, requires_grad=True)
    targets, lengths = torch.randint(1, 12, (3, 5)), (torch.tensor([50, 40, 30]), torch.tensor([5, 4, 3]))
    plain = brctc.bayes_risk_ctc_loss(logits, targets, *lengths, from_logits=True)
    theirs = torch.nn.functional.ctc_loss(logits.log_softmax(-1), targets, *lengths)
    torch.testing.assert_close(plain, theirs)
    for risk in (brctc.EarlyFinish(10.0), brctc.EarlyEmission(10.0), brctc.DelayPenalty(0.1)):
        results = []
        for backend in ("cpu", "reference"):
            loss = brctc.bayes_risk_ctc_loss(
                logits, targets, *lengths, risk, from_logits=True, backend=backend
            )
            results.append((loss, *torch.autograd.grad(loss, logits)))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    paths, scores = brctc.forced_align(logits.transpose(0, 1), targets, *lengths, from_logits=True)
    assert paths.shape == scores.shape == (3, 50)
    joint = torch.randn(2, 6, 4, 7)
    losses = [
        brctc.functional.rnnt_loss(joint, torch.randint(0, 6, (2, 3)) * 0 + 2, [6, 5], [3, 2], backend=name)
        for name in ("cpu", "reference")
    ]
    torch.testing.assert_close(*losses)
    print(
        f"brctc {brctc.__version__}, cpu {state}, torch {torch.__version__}, Python {sys.version.split()[0]}"
    )


if __name__ == "__main__":
    main()
