"""Operator ``norm_silu_winograd``: the part of a network between two Winograd convolutions in time.

It computes the output transform of the first, bias, residual, RMSNorm over channels, SiLU, and the
input transform of the second. Frames are processed in pairs: four products of the first convolution
for each pair become four transformed inputs of the second. These also need the two frames before
the pair: from the previous pair, or from ``past`` at the start.
"""

import torch
from torch import Tensor
from torch.nn import functional

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define

CHANNELS = (32, 64, 96, 128, 192, 256, 384)
"""Numbers of channels that the kernel is compiled for: it has 16 threads for a pixel."""
_LEAST = 1e-12
"""The least norm that ``torch.nn.functional.normalize`` divides by."""
_CHECKS = Checks("norm_silu_winograd")


def output_transform(m0: Tensor, m1: Tensor, m2: Tensor, m3: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the even and the odd frames of a convolution from its four products."""
    return m0 + m1 + m2, m1 - m2 - m3


def input_transform(d0: Tensor, d1: Tensor, d2: Tensor, d3: Tensor) -> tuple[Tensor, ...]:
    """Returns the four inputs of the products of two output frames, from four input frames."""
    return d0 - d2, d1 + d2, d2 - d1, d1 - d3


def norm_silu_winograd_reference(
    m0: Tensor,
    m1: Tensor | None,
    m2: Tensor | None,
    m3: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    past: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, normalizes over channels, applies SiLU and prepares the next convolution.

    Computed in float32; the sum and the activations are rounded to float16 once. K is the number of
    pairs of frames, T is 2 K.

    Args:
        m0: float16 ``[B K, H, W, C]``, the first of the four products of a convolution; or
            ``[B, T, H, W, C]``, frames that no convolution made, if ``m1`` to ``m3`` are None. C is
            one of ``CHANNELS``.
        m1: the second product, of the same shape; or None.
        m2: the third product; or None.
        m3: the fourth product; or None.
        bias: float16 ``[C]`` of the convolution; None for frames.
        residual: float16 ``[B, T, H, W, C]``, added to the convolution's result; or None.
        gamma: float16 ``[C]``, the norm's weight.
        past: float16 ``[B, 2, H, W, C]``, the two activations before the first.

    Returns:
        ``input_transform`` of the activations, float16 ``[4, B K, H, W, C]``; the last two
        activations, like ``past``; and the sum, like ``residual``, ``[0]`` without one.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    pairs = _check((m0, m1, m2, m3), bias, residual, gamma, past)
    batch, _, height, width, channels = past.shape
    shape = (batch, pairs, height, width, channels)
    if m1 is None or m2 is None or m3 is None:
        frames = m0.float()
    else:
        both = output_transform(*(product.float().view(shape) for product in (m0, m1, m2, m3)))
        frames = torch.stack(both, 2).reshape(batch, 2 * pairs, height, width, channels)
    if bias is not None:
        frames = frames + bias.float()
    if residual is None:
        total = m0.new_empty(0)
    else:
        frames = frames + residual.float()
        total = frames.to(m0.dtype)
    normed = functional.normalize(frames, dim=-1, eps=_LEAST) * channels**0.5 * gamma.float()
    every = torch.cat([past, functional.silu(normed).to(m0.dtype)], 1).float()
    inputs = input_transform(*(every[:, i : i + 2 * pairs : 2] for i in range(4)))
    made = torch.stack(inputs).flatten(1, 2).to(m0.dtype)
    last = every[:, -2:].to(m0.dtype, memory_format=torch.contiguous_format)
    return made, last, total


def _check(
    products: tuple[Tensor | None, ...],
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    past: Tensor,
) -> int:
    """Returns the number of pairs of frames."""
    _CHECKS.shape("past", past, ("B", 2, "H", "W", "C"))
    batch, _, *pixel = past.shape
    _CHECKS.that(pixel[-1] in CHANNELS, "past", f"C among {CHANNELS}", pixel[-1])
    _CHECKS.shape("gamma", gamma, pixel[-1:])
    given = {f"m{i}": product for i, product in enumerate(products) if product is not None}
    m0, others = given["m0"], len(given) - 1
    _CHECKS.that(others in (0, 3), "m1", "all of m1, m2 and m3, or none", others)
    if others:
        _CHECKS.shape("m0", m0, ("B K", *pixel))
        _CHECKS.that(len(m0) % batch == 0, "m0", f"a multiple of {batch} pairs", len(m0))
        pairs = len(m0) // batch
    else:
        _CHECKS.shape("m0", m0, (batch, "T", *pixel))
        _CHECKS.that(m0.shape[1] % 2 == 0, "m0", "an even number of frames", m0.shape[1])
        pairs = m0.shape[1] // 2
        _CHECKS.that(bias is None, "bias", "none for frames", "a tensor")
        _CHECKS.that(residual is None, "residual", "none for frames", "a tensor")
    for name, product in given.items():
        _CHECKS.shape(name, product, m0.shape)
    given = {"m0": m0, "gamma": gamma, "past": past, **given}
    if bias is not None:
        _CHECKS.shape("bias", bias, pixel[-1:])
        given["bias"] = bias
    if residual is not None:
        _CHECKS.shape("residual", residual, (batch, 2 * pairs, *pixel))
        given["residual"] = residual
    for name, tensor in given.items():
        _CHECKS.dtype(name, tensor, (torch.float16,))
    return pairs


norm_silu_winograd = define(
    "norm_silu_winograd(Tensor m0, Tensor? m1, Tensor? m2, Tensor? m3, Tensor? bias,"
    " Tensor? residual, Tensor gamma, Tensor past) -> (Tensor, Tensor, Tensor)",
    norm_silu_winograd_reference,
    norm_silu_winograd_reference,  # Fake tensors go through it as well.
)
