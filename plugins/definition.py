"""Makes a function one of torch's operators, in namespace ``vidc``."""

from collections.abc import Callable
from typing import Any

import torch

from vidc.plugins import kernel_library
from vidc.plugins.errors import UnavailableError

LIBRARY = torch.library.Library("vidc", "FRAGMENT")


def define(
    schema: str, reference: Callable[..., Any], fake: Callable[..., Any]
) -> torch._ops.OpOverload:
    """Defines an operator whose kernels, on CUDA, come from the library of kernels.

    Without that library it is refused there: a reference on a GPU would be slow and say nothing.

    Args:
        schema: name, arguments and results; what is written in place is marked in it.
        reference: computes it on a CPU.
        fake: the shapes and dtypes of the results.

    Returns:
        The operator; on CUDA without a library it raises UnavailableError: ``VIDC-KERNEL-LIBRARY``
        or ``VIDC-KERNEL-ABI``.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, reference, "CPU")
    torch.library.register_fake(f"vidc::{name}", fake, lib=LIBRARY)
    fault = kernel_library.fault()
    if fault is not None:
        LIBRARY.impl(name, _refusal(name, fault), "CUDA")
    overload: torch._ops.OpOverload = getattr(torch.ops.vidc, name).default
    return overload


def _refusal(name: str, fault: UnavailableError) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise UnavailableError(
            fault.code, f"vidc::{name} has no kernel for CUDA tensors: {fault.message}", fault.hint
        )

    return refuse
