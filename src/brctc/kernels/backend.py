"""The backends behind the one door: what each offers, which there are, and which one a tensor gets."""

import functools
import warnings
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from brctc import _native
from brctc.kernels.ctc import cpu as ctc_cpu
from brctc.kernels.ctc import reference as ctc_reference
from brctc.kernels.ctc import triton as ctc_triton
from brctc.kernels.ctc.closed_form import ClosedForm
from brctc.kernels.ctc.groups import Event, PathGroups
from brctc.kernels.ctc.inputs import Inputs
from brctc.kernels.gpu_support import device_problem, triton_state
from brctc.kernels.reduction import Reduction
from brctc.kernels.transducer import cpu as transducer_cpu
from brctc.kernels.transducer import reference as transducer_reference
from brctc.kernels.transducer import triton as transducer_triton
from brctc.kernels.transducer.inputs import Joint, Labels

BackendName = Literal["cpu", "triton", "reference"]


class CTCKernels(Protocol):
    """The CTC criteria of a backend: a module is one."""

    def has_closed_form(self, form: ClosedForm) -> bool:
        """Whether `loss` computes it. Other risks go through `path_groups` and `risk_loss`."""
        ...

    def loss(self, inputs: Inputs, form: ClosedForm, reduction: Reduction, validate: bool) -> Tensor:
        """The reduced loss of a risk that has a closed form."""
        ...

    def path_groups(self, inputs: Inputs, event: Event, validate: bool) -> tuple[Tensor, Tensor]:
        """log_share (N, U, T) and log_likelihood (N), as PathGroups describes them."""
        ...

    def risk_loss(
        self,
        inputs: Inputs,
        groups: PathGroups,
        log_risk: Tensor,
        last_only: bool,
        reduction: Reduction,
        token_weights: Tensor | None,
    ) -> Tensor:
        """The reduced loss of a custom risk, of each token's groups or of the last token's alone. Tokens
        count by their weights (N, U), or all the same."""
        ...


class TransducerKernels(Protocol):
    """The transducer losses of a backend: a module is one."""

    def losses(self, logits: Tensor, labels: Labels, validate: bool) -> Tensor:
        """-log P(targets) of every utterance, (N)."""
        ...

    def joint_loss(self, joint: Joint, labels: Labels, reduction: Reduction, validate: bool) -> Tensor:
        """The reduced loss of the joint network's logits."""
        ...


class Backend(NamedTuple):
    """An implementation of every criterion."""

    name: BackendName
    reads_half: bool  # whether its kernels read half precision themselves
    ctc: CTCKernels
    transducer: TransducerKernels


CPU = Backend("cpu", False, ctc_cpu, transducer_cpu)
TRITON = Backend("triton", True, ctc_triton, transducer_triton)
REFERENCE = Backend("reference", False, ctc_reference, transducer_reference)
_BY_NAME = {backend.name: backend for backend in (CPU, TRITON, REFERENCE)}


def backends() -> dict[str, str]:
    """What can run here: each backend's name with "ok" or the reason why not."""
    return {"cpu": native_state(), "triton": triton_state(), "reference": "ok"}


def native_state() -> str:
    """ "ok" with the instruction set that the native core uses, or why there is none."""
    return native_problem() or f"ok ({_native.instruction_set()})"


def native_problem() -> str | None:
    """Why the native core cannot run, or None."""
    return vars(_native).get("PROBLEM")  # of the module that stands in for it


_CPU_PROBLEM = native_problem()


def backend_of(name: BackendName | None, scores: Tensor) -> Backend:
    """The named backend, or without a name the best one for the tensor. Asks for no device where it can: a
    device costs 5 us."""
    if name is None and scores.is_cpu and not _CPU_PROBLEM:
        return CPU
    return choose_backend(name, scores.device)


def choose_backend(name: BackendName | None, device: torch.device) -> Backend:
    """The named backend, or without a name the best one for the device."""
    if name is None:
        if device.type == "cpu" and not _CPU_PROBLEM:
            return CPU
        problem = _CPU_PROBLEM if device.type == "cpu" else _triton_problem(device)
        if problem is None:
            return TRITON
        if device.type != "meta":  # only shapes are asked for there
            _warn_fallback(device.type, problem)
        return REFERENCE
    if name not in _BY_NAME:
        raise ValueError(f"unknown backend {name!r}, expected one of {get_args(BackendName)} or None")
    if name == "cpu" and _CPU_PROBLEM:
        raise ValueError(f"backend 'cpu' cannot run here: {_CPU_PROBLEM}")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs CPU tensors, got {device}")
    if name == "triton" and (problem := _triton_problem(device)):
        raise ValueError(f"backend 'triton' cannot run here: {problem}")
    return _BY_NAME[name]


def _triton_problem(device: torch.device) -> str | None:
    """Why the Triton kernels cannot run on the device, or None."""
    state = triton_state()
    if not state.startswith("ok"):
        return state
    interpreted = "interpreter" in state
    if device.type != "cuda" and not (device.type == "cpu" and interpreted):
        return f"it needs CUDA or ROCm tensors, got {device}"
    return None if interpreted else device_problem(device.index or 0)


@functools.cache
def _warn_fallback(device_type: str, problem: str) -> None:
    warnings.warn(
        f"brctc has no native kernels for {device_type!r} tensors"
        f"{f' ({problem})' if device_type in ('cuda', 'cpu') else ''}: "
        "the reference implementation runs, right but slow",
        stacklevel=4,
    )
