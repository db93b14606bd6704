"""How a native function becomes an operator of torch: traced, compiled and exported like torch's own."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._C._dynamo import eval_frame
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor
from torch._guards import detect_fake_mode

Function = TypeVar("Function", bound=Callable[..., Any])

_library = torch.library.Library("brctc", "FRAGMENT")

# what looks at every Python function that is called, or None; older versions of torch do not say
_compiler: Callable[[], object] = getattr(
    eval_frame, "get_eval_frame_callback", lambda: sys.modules.get("torch._dynamo")
)


def register(
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup: Callable[..., None] | None = None,
    devices: tuple[str, ...] = ("CPU",),
) -> Callable[..., Any]:
    """The operator. `fake` gives shapes without values; `setup` and `backward` are those of torch.library."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for device in devices:
        _library.impl(name, function, device)
    torch.library.register_fake(f"brctc::{name}", fake, lib=_library)
    if backward is not None:
        torch.library.register_autograd(f"brctc::{name}", backward, setup_context=setup, lib=_library)
    return getattr(torch.ops.brctc, name)


def no_second_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "the native backends have no second derivative: pass backend='reference' to differentiate twice"
    )


def outside_graphs(function: Function) -> Function:
    """Keeps compilers out of a function that hands addresses to native code: a graph that breaks between
    the two frees what the address is of. torch.compiler.disable, but costs nothing where no compiler looks,
    neither its import nor 4 us a call.
    """
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        nonlocal disabled
        if not torch.compiler.is_compiling() and _compiler() is None:
            return function(*arguments, **options)
        disabled = disabled or torch.compiler.disable(function)
        return disabled(*arguments, **options)

    setattr(run, "_torchdynamo_disable", True)  # noqa: B010
    return cast("Function", run)


def is_traced(scores: Tensor) -> bool:
    """Whether somebody looks at operators: a compiler, a tensor subclass, a dispatch mode."""
    return (
        torch.compiler.is_compiling()
        or type(scores) not in (Tensor, torch.nn.Parameter)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_tracing()
    )


def has_values(tensor: Tensor) -> bool:
    """Whether a number can be read off it: a trace has none."""
    if torch.compiler.is_compiling() or tensor.is_meta:
        return False
    if not is_traced(tensor):
        return True
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return detect_fake_mode(tensor) is None and (proxies is None or proxies.get_proxy_mode() is None)


def needs_operators(scores: Tensor) -> bool:
    """Whether native code is to be called as an operator of torch, and not at once."""
    if is_traced(scores):
        return True
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError("torch.func does not reach into native code: pass backend='reference'")
    return False


def builds_graph() -> bool:
    """Whether a backward pass is one that others look at: with create_graph=True, the operator says that it
    has no derivative."""
    return torch.is_grad_enabled() or torch.compiler.is_compiling()


def wants_operator(*grads: Tensor) -> bool:
    """The same for native code that has no place for many gradients at once."""
    if any(is_batched(grad) for grad in grads):
        raise RuntimeError(
            "batched gradients (is_grads_batched, vectorize) do not reach into native code: "
            "pass backend='reference'"
        )
    return builds_graph()


def is_batched(tensor: Tensor) -> bool:
    """Whether one of torch's vmaps has made it; a compiler cannot ask, and has no such tensors."""
    compiled = torch.compiler.is_compiling()
    return not compiled and (is_legacy_batchedtensor(tensor) or is_batchedtensor(tensor))
