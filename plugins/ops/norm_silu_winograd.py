"""Operator ``norm_silu_winograd``: the part of a network between two Winograd convolutions in time.

It computes the output transform of the first, bias, residual, RMSNorm over channels, SiLU, and the
input transform of the second. Frames are processed in tiles of m: for each tile, m + 2 products of
the first convolution become m + 2 transformed inputs of the second. These also need the two frames
before the tile: from the previous tile, or from ``past`` at the start.
"""

import torch
from torch import Tensor
from torch.nn import functional

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define
from vidc.plugins.ops.winograd_tiles import TILES, input_transform, output_transform

CHANNELS = (32, 64, 96, 128, 192, 256, 384)
"""Numbers of channels that the kernel is compiled for: it has 16 threads for a pixel."""
_LEAST = 1e-12
"""The least norm that ``torch.nn.functional.normalize`` divides by."""
_CHECKS = Checks("norm_silu_winograd")


def norm_silu_winograd_reference(
    m0: Tensor,
    m1: Tensor | None,
    m2: Tensor | None,
    m3: Tensor | None,
    m4: Tensor | None,
    m5: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    past: Tensor,
    tile: int,
    keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, normalizes over channels, applies SiLU and prepares the next convolution.

    Computed in float32; the sum and the activations are rounded to float16 once. K is the number of
    tiles of a video, T is ``tile`` times K.

    Args:
        m0: float16 ``[B K, H, W, C]``, the first of the ``tile + 2`` products of a convolution; or
            ``[B, T, H, W, C]``, frames that no convolution made, if the other products are None. C
            is one of ``CHANNELS``.
        m1: the second product, of the same shape; or None.
        m2: the third product; or None.
        m3: the fourth product; or None.
        m4: the fifth product, for tiles of three and four frames; or None.
        m5: the sixth product, for tiles of four frames; or None.
        bias: float16 ``[C]`` of the convolution; None for frames.
        residual: float16 ``[B, T, H, W, C]``, added to the convolution's result; or None.
        gamma: float16 ``[C]``, the norm's weight.
        past: float16 ``[B, 2, H, W, C]``, the two activations before the first.
        tile: m, the number of frames of a tile, one of ``TILES``.
        keep_sum: True to return the sum.

    Returns:
        ``input_transform`` of the activations, float16 ``[tile + 2, B K, H, W, C]``; the last two
        activations, like ``past``; and the sum, ``[B, T, H, W, C]``, ``[0]`` if it is not kept.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    products = (m0, m1, m2, m3, m4, m5)
    tiles = _check(products, bias, residual, gamma, past, tile, keep_sum)
    batch, _, height, width, channels = past.shape
    shape = (batch, tiles, height, width, channels)
    if m1 is None:
        frames = m0.float()
    else:
        results = output_transform(
            [each.float().view(shape) for each in products if each is not None]
        )
        frames = torch.stack(results, 2).reshape(batch, tile * tiles, height, width, channels)
    if bias is not None:
        frames = frames + bias.float()
    if residual is not None:
        frames = frames + residual.float()
    total = frames.to(m0.dtype) if keep_sum else m0.new_empty(0)
    normed = functional.normalize(frames, dim=-1, eps=_LEAST) * channels**0.5 * gamma.float()
    every = torch.cat([past, functional.silu(normed).to(m0.dtype)], 1).float()
    inputs = input_transform([every[:, i : i + tile * tiles : tile] for i in range(tile + 2)])
    made = torch.stack(inputs).flatten(1, 2).to(m0.dtype)
    last = every[:, -2:].to(m0.dtype, memory_format=torch.contiguous_format)
    return made, last, total


def _check(
    products: tuple[Tensor | None, ...],
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    past: Tensor,
    tile: int,
    keep_sum: bool,
) -> int:
    """Returns the number of tiles of a video."""
    _CHECKS.that(tile in TILES, "tile", f"one of {TILES}", tile)
    _CHECKS.shape("past", past, ("B", 2, "H", "W", "C"))
    batch, _, *pixel = past.shape
    _CHECKS.that(pixel[-1] in CHANNELS, "past", f"C among {CHANNELS}", pixel[-1])
    _CHECKS.shape("gamma", gamma, pixel[-1:])
    given = {f"m{i}": product for i, product in enumerate(products) if product is not None}
    m0, others = given["m0"], list(given)[1:]
    if others:
        wanted = [f"m{i}" for i in range(1, tile + 2)]
        _CHECKS.that(
            others == wanted, "m1", f"{', '.join(wanted)}, or none of them", ", ".join(others)
        )
        _CHECKS.shape("m0", m0, ("B K", *pixel))
        _CHECKS.that(len(m0) % batch == 0, "m0", f"a multiple of {batch} tiles", len(m0))
        tiles = len(m0) // batch
    else:
        _CHECKS.shape("m0", m0, (batch, "T", *pixel))
        _CHECKS.that(m0.shape[1] % tile == 0, "m0", f"a multiple of {tile} frames", m0.shape[1])
        tiles = m0.shape[1] // tile
        _CHECKS.that(bias is None, "bias", "none for frames", "a tensor")
        _CHECKS.that(residual is None, "residual", "none for frames", "a tensor")
        _CHECKS.that(not keep_sum, "keep_sum", "False for frames", keep_sum)
    for name, product in given.items():
        _CHECKS.shape(name, product, m0.shape)
    given = {"m0": m0, "gamma": gamma, "past": past, **given}
    if bias is not None:
        _CHECKS.shape("bias", bias, pixel[-1:])
        given["bias"] = bias
    if residual is not None:
        _CHECKS.shape("residual", residual, (batch, tile * tiles, *pixel))
        given["residual"] = residual
    for name, tensor in given.items():
        _CHECKS.dtype(name, tensor, (torch.float16,))
    return tiles


norm_silu_winograd = define(
    "norm_silu_winograd(Tensor m0, Tensor? m1, Tensor? m2, Tensor? m3, Tensor? m4, Tensor? m5,"
    " Tensor? bias, Tensor? residual, Tensor gamma, Tensor past, int tile, bool keep_sum)"
    " -> (Tensor, Tensor, Tensor)",
    norm_silu_winograd_reference,
    norm_silu_winograd_reference,  # Fake tensors go through it as well.
)
