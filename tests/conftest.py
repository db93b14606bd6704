"""Without a GPU, Triton's kernels run in its interpreter; that is decided before Triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
