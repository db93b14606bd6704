"""A backend beside the reference in float64, in loss and gradient."""

import torch


def loss_and_grad(batch, risk, upstream, *, device="cpu", **options):
    """Losses and the gradient of their sum, weighed by upstream; computed on the device, given on the CPU."""
    scores = batch.scores.detach().clone(memory_format=torch.preserve_format).to(device).requires_grad_()
    loss = batch._replace(scores=scores).loss(risk, **options)
    (grad,) = torch.autograd.grad(loss, scores, upstream.to(loss))
    return loss.detach().cpu(), grad.cpu()


def check_parity(batch, risk, *, backend, device="cpu", from_logits):
    upstream = torch.randn(batch.scores.shape[1], dtype=torch.double)
    exact = batch.scores.dtype == torch.float64
    options = {"from_logits": from_logits}
    loss, grad = loss_and_grad(batch, risk, upstream, device=device, backend=backend, **options)
    in_double = batch._replace(scores=batch.scores.double())
    expected, expected_grad = loss_and_grad(in_double, risk, upstream, backend="reference", **options)
    assert (loss.isinf() == expected.isinf()).all()
    finite = expected.isfinite()
    tolerance = 1e-10 if exact else 2e-6
    torch.testing.assert_close(loss[finite].double(), expected[finite], rtol=tolerance, atol=10 * tolerance)
    for n in range(len(loss)):
        for gradient in (grad, expected_grad):  # padding holds NaN in the scores and must have gradient zero
            assert (gradient[batch.input_lengths[n] :, n] == 0).all()
        used = expected_grad[: batch.input_lengths[n], n]
        error = (grad[: batch.input_lengths[n], n].double() - used).norm()
        assert error <= (1e-9 if exact else 2e-5) * (1 + used.norm())
