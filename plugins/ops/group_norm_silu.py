"""Operator ``group_norm_silu``: GroupNorm and SiLU of pixels whose channels are contiguous.

This is the layout that convolutions on GPUs read and write, so no transposes are needed around the
operator. It can first add a vector, such as the bias of the convolution before it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from vidc.plugins.arguments import VECTOR, Checks
from vidc.plugins.definition import define

MOST_CHANNELS = 320 * VECTOR
"""A block has a thread for each vector of a pixel, at most 320."""
MOST_GROUPS = 256
MOST_IMAGES = 2**16 - 1
_CHECKS = Checks("group_norm_silu")


def group_norm_silu_reference(
    x: Tensor,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    silu: bool,
) -> Tensor:
    """Normalizes each group of channels over all pixels of an image, computed in float32.

    Args:
        x: ``[N, P, C]``, bfloat16 or float16, N images of P pixels. C is a multiple of 8, at most
            2560; N is below 65536.
        shift: float32 ``[C]``, added to ``x`` before; or None.
        weight: ``[C]``, the dtype of ``x``.
        bias: ``[C]``, the dtype of ``x``.
        groups: number of groups, a divisor of C, at most 256.
        eps: added to the variance.
        silu: True to apply SiLU to the result.

    Returns:
        ``[N, P, C]``, rounded once to the dtype of ``x``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(x, shift, weight, bias, groups)
    pixels = x.float() if shift is None else x.float() + shift
    normed = torch.group_norm(
        pixels.transpose(1, 2), groups, weight.float(), bias.float(), eps
    ).transpose(1, 2)
    result = functional.silu(normed) if silu else normed
    return result.to(x.dtype, memory_format=torch.contiguous_format)


def _fake(
    x: Tensor,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    silu: bool,
) -> Tensor:
    _check(x, shift, weight, bias, groups)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _check(x: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, groups: int) -> None:
    _CHECKS.shape("x", x, ("N", "P", "C"))
    images, _, channels = x.shape
    _CHECKS.that(images <= MOST_IMAGES, "x", f"at most {MOST_IMAGES} images", images)
    _CHECKS.that(
        channels % VECTOR == 0 and channels <= MOST_CHANNELS,
        "x",
        f"C a multiple of {VECTOR}, at most {MOST_CHANNELS}",
        channels,
    )
    _CHECKS.that(
        0 < groups <= MOST_GROUPS and channels % groups == 0,
        "groups",
        f"a divisor of {channels}, at most {MOST_GROUPS}",
        groups,
    )
    _CHECKS.dtype("x", x, (torch.bfloat16, torch.float16))
    for name, tensor in (("weight", weight), ("bias", bias)):
        _CHECKS.shape(name, tensor, (channels,))
        _CHECKS.dtype(name, tensor, (x.dtype,))
    if shift is not None:
        _CHECKS.shape("shift", shift, (channels,))
        _CHECKS.dtype("shift", shift, (torch.float32,))


group_norm_silu = define(
    "group_norm_silu(Tensor x, Tensor? shift, Tensor weight, Tensor bias, int groups, float eps,"
    " bool silu) -> Tensor",
    group_norm_silu_reference,
    _fake,
)
