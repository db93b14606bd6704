"""For all tests. Without a GPU, Triton's kernels run in its interpreter; that is decided before Triton is
imported."""

import os

import pytest
import torch

from brctc import _native

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="module")
def poisoned_memory():
    """Whatever the native core reads without having written it is NaN."""
    _native.poison_memory(True)
    yield
    _native.poison_memory(False)
