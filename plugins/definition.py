"""Definition of torch operators in the namespace ``vidc``."""

from collections.abc import Callable
from typing import Any

import torch

from vidc.plugins import loading
from vidc.plugins.errors import UnavailableError

LIBRARY = torch.library.Library("vidc", "FRAGMENT")


def define(
    schema: str, reference: Callable[..., Any], fake: Callable[..., Any]
) -> torch._ops.OpOverload:
    """Defines an operator whose CUDA kernel is in ``libvidc_torch.so``.

    Without that library the operator refuses CUDA tensors: the reference would run there, slowly
    and without a warning.

    Args:
        schema: name, arguments and results; marks the arguments that are written in place.
        reference: the implementation for CPU tensors.
        fake: returns tensors of the right shapes and dtypes.

    Returns:
        The operator. On CUDA without a library it raises UnavailableError: ``VIDC-KERNEL-LIBRARY``
        or ``VIDC-KERNEL-ABI``.
    """
    operator = _define(schema, "CPU", reference, fake)
    error = loading.torch_library_error()
    if error is not None:
        name = schema.partition("(")[0]
        LIBRARY.impl(name, _refusal(name, error), "CUDA")
    return operator


def define_composite(
    schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]
) -> torch._ops.OpOverload:
    """Defines an operator with one implementation for every device; arguments as in ``define``."""
    return _define(schema, "CompositeExplicitAutograd", implementation, fake)


def _define(
    schema: str, key: str, implementation: Callable[..., Any], fake: Callable[..., Any]
) -> torch._ops.OpOverload:
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, implementation, key)
    torch.library.register_fake(f"vidc::{name}", fake, lib=LIBRARY)
    overload: torch._ops.OpOverload = getattr(torch.ops.vidc, name).default
    return overload


def _refusal(name: str, error: UnavailableError) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise UnavailableError(
            error.code, f"vidc::{name} has no kernel for CUDA tensors: {error.message}", error.hint
        )

    return refuse
