"""How a native function becomes an operator of torch: traced, compiled and exported like torch's own."""

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("brctc", "FRAGMENT")


def register(
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    setup: Callable[..., None] | None = None,
) -> None:
    """`fake` gives shapes without values; `setup` and `backward` are those of torch.library."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, function, "CPU")
    torch.library.register_fake(f"brctc::{name}", fake, lib=_library)
    torch.library.register_autograd(f"brctc::{name}", backward, setup_context=setup, lib=_library)
