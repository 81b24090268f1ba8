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
    x: Tensor,
    x1: Tensor | None,
    x2: Tensor | None,
    x3: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    past: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, normalizes over channels, applies SiLU and prepares the next convolution.

    Computed in float32; the sum and the activations are rounded to float16 once. K is the number of
    pairs of frames, T is 2 K.

    Args:
        x: float16 ``[B, T, H, W, C]``, frames; or ``[B K, H, W, C]``, the first product of a
            convolution, if ``x1`` to ``x3`` are given. C is one of ``CHANNELS``.
        x1: the second product, or None. Like ``x``, as are the third and the fourth.
        x2: the third.
        x3: the fourth.
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
    pairs = _check(x, x1, x2, x3, bias, residual, gamma, past)
    batch, _, height, width, channels = past.shape
    shape = (batch, pairs, height, width, channels)
    if x1 is None or x2 is None or x3 is None:
        frames = x.float()
    else:
        both = output_transform(*(product.float().view(shape) for product in (x, x1, x2, x3)))
        frames = torch.stack(both, 2).reshape(batch, 2 * pairs, height, width, channels)
    if bias is not None:
        frames = frames + bias.float()
    if residual is None:
        total = x.new_empty(0)
    else:
        frames = frames + residual.float()
        total = frames.to(x.dtype)
    normed = functional.normalize(frames, dim=-1, eps=_LEAST) * channels**0.5 * gamma.float()
    every = torch.cat([past, functional.silu(normed).to(x.dtype)], 1).float()
    inputs = input_transform(*(every[:, i : i + 2 * pairs : 2] for i in range(4)))
    made = torch.stack(inputs).flatten(1, 2).to(x.dtype)
    return made, every[:, -2:].to(x.dtype), total


def _fake(
    x: Tensor,
    x1: Tensor | None,
    x2: Tensor | None,
    x3: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    past: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    pairs = _check(x, x1, x2, x3, bias, residual, gamma, past)
    batch, _, *pixel = past.shape
    total = x.new_empty(0) if residual is None else x.new_empty(batch, 2 * pairs, *pixel)
    return x.new_empty(4, batch * pairs, *pixel), x.new_empty(past.shape), total


def _check(
    x: Tensor,
    x1: Tensor | None,
    x2: Tensor | None,
    x3: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    past: Tensor,
) -> int:
    """Returns the number of pairs of frames."""
    _CHECKS.shape("past", past, ("B", 2, "H", "W", "C"))
    batch, _, height, width, channels = past.shape
    _CHECKS.that(channels in CHANNELS, "past", f"C among {CHANNELS}", channels)
    _CHECKS.shape("gamma", gamma, (channels,))
    others = (x1, x2, x3)
    given = sum(product is not None for product in others)
    _CHECKS.that(given in (0, 3), "x1", "all of x1, x2 and x3, or none", given)
    if given:
        _CHECKS.shape("x", x, ("B K", height, width, channels))
        _CHECKS.that(x.shape[0] % batch == 0, "x", f"a multiple of {batch} pairs", x.shape[0])
        pairs = x.shape[0] // batch
    else:
        _CHECKS.shape("x", x, (batch, "T", height, width, channels))
        _CHECKS.that(x.shape[1] % 2 == 0, "x", "an even number of frames", x.shape[1])
        pairs = x.shape[1] // 2
        _CHECKS.that(bias is None, "bias", "none for frames", "a tensor")
        _CHECKS.that(residual is None, "residual", "none for frames", "a tensor")
    tensors = {"x": x, "gamma": gamma, "past": past}
    for name, product in zip(("x1", "x2", "x3"), others, strict=True):
        if product is not None:
            _CHECKS.shape(name, product, tuple(x.shape))
            tensors[name] = product
    if bias is not None:
        _CHECKS.shape("bias", bias, (channels,))
        tensors["bias"] = bias
    if residual is not None:
        _CHECKS.shape("residual", residual, (batch, 2 * pairs, height, width, channels))
        tensors["residual"] = residual
    for name, tensor in tensors.items():
        _CHECKS.dtype(name, tensor, (torch.float16,))
    return pairs


norm_silu_winograd = define(
    "norm_silu_winograd(Tensor x, Tensor? x1, Tensor? x2, Tensor? x3, Tensor? bias,"
    " Tensor? residual, Tensor gamma, Tensor past) -> (Tensor, Tensor, Tensor)",
    norm_silu_winograd_reference,
    _fake,
)
