"""Which backend a tensor gets: Triton only on GPUs that it supports, and only where it runs."""

import warnings

import pytest
import torch

from brctc.kernels import backend, gpu_support
from brctc.kernels.backend import REFERENCE, TRITON, choose_backend
from brctc.kernels.gpu_support import capability_problem

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capability", "is_rocm", "problem"),
    [
        ((7, 0), False, "compute capability 7.0 is below 8.0"),  # V100
        ((7, 5), False, "compute capability 7.5 is below 8.0"),  # T4
        ((8, 0), False, None),  # A100
        ((9, 0), False, None),
        ((12, 0), False, None),
        ((6, 0), True, None),  # ROCm's numbers are others
    ],
)
def test_capability(capability, is_rocm, problem):
    assert capability_problem(capability, is_rocm) == problem


@pytest.fixture
def old_gpu(monkeypatch):
    """As on a machine with a V100: what torch says of the device is all that is replaced."""
    monkeypatch.setattr(backend, "triton_state", lambda: "ok (Tesla V100)")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    gpu_support._find_device_problem.cache_clear()
    backend._warn_fallback.cache_clear()
    yield
    gpu_support._find_device_problem.cache_clear()
    backend._warn_fallback.cache_clear()


def test_an_old_gpu_takes_the_reference_with_one_warning(old_gpu):
    with pytest.warns(UserWarning, match=r"compute capability 7\.0 is below 8\.0\): the reference"):
        assert choose_backend(None, CUDA) is REFERENCE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_backend(None, CUDA) is REFERENCE


def test_an_old_gpu_refuses_triton(old_gpu):
    with pytest.raises(ValueError, match=r"'triton' cannot run here: compute capability 7\.0 is below 8\.0"):
        choose_backend("triton", CUDA)


def test_a_new_gpu_takes_triton(old_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    assert choose_backend(None, CUDA) is TRITON
    assert choose_backend("triton", CUDA) is TRITON
