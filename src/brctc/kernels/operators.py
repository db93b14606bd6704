"""How a native function becomes an operator of torch: traced, compiled and exported like torch's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("brctc", "FRAGMENT")


def register(
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup: Callable[..., None] | None = None,
    devices: tuple[str, ...] = ("CPU",),
) -> None:
    """`fake` gives shapes without values; `setup` and `backward`, if any, are those of torch.library."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for device in devices:
        _library.impl(name, function, device)
    torch.library.register_fake(f"brctc::{name}", fake, lib=_library)
    if backward is not None:
        torch.library.register_autograd(f"brctc::{name}", backward, setup_context=setup, lib=_library)


def no_second_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "the native backends have no second derivative: pass backend='reference' to differentiate twice"
    )


def is_traced(scores: Tensor) -> bool:
    """Whether somebody looks at operators: a compiler, a tensor subclass, a dispatch mode."""
    if (
        torch.compiler.is_compiling()
        or type(scores) not in (Tensor, torch.nn.Parameter)
        or torch._C._len_torch_dispatch_stack() > 0
    ):
        return True
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError("torch.func does not reach into native code: pass backend='reference'")
    return False
