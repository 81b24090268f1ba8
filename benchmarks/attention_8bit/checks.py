"""Checks of an attention kernel's results: which values differ, and where the first one is."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_8bit.calibration import calibrate
from attention_8bit.emulation import emulate, products
from attention_8bit.inputs import Inputs, draw
from attention_8bit.kernel import POISON, TILE, Attention, first_products
from attention_8bit.ring import (
    Ring8Bit,
    RingScales,
    quantize_queries,
    quantize_ring,
    transpose_values,
)
from vidc.plugins.ops.ring_attention_8bit import restore_values
from vidc.plugins.quantize import LARGEST, quantize
from vidc.plugins.transposed_values import GROUP

AGAINST_EMULATION = 0.006
"""Relative L2: bfloat16's 0.0017, and weights that the approximate exponential moved by one."""
ASKED = 0.03
"""Limit of the relative L2 of any 8-bit kernel against float64."""
AGAINST_FLOAT64 = {
    (torch.int8, 64): ASKED, (torch.int8, 128): ASKED, (torch.float8_e4m3fn, 128): ASKED,
    (torch.float8_e4m3fn, 64): 0.04,
}  # fmt: skip
"""By dtype and head size. FP8 misses what was asked with heads of 64 channels: the rounded inputs
alone, with exact weights, are at up to 0.032 there."""
FEW_QUERIES = 64
"""Fewer may be twice as far: a single one is no mean."""
ELEMENT = 0.1
"""Limit of an element's error, relative to its row's root mean square, that rounding explains."""
OF_WEIGHTS = 2**-3
"""In FP8 of what each weight adds besides: two that are rounded differently are so far apart."""
OF_MANY = 1 / 3
"""Share of that limit over many queries: roundings are rarely the worst."""
PRODUCTS_KEPT = 2**-10
"""Share of the sum of a product's magnitudes that the matrix units may lose in FP8."""

WORST = {torch.int8: (0x80, 0x80), torch.float8_e4m3fn: (0x7F, 0xFE)}
"""Bytes of keys and of values that do not count: -128 and -128, not a number and -448."""


@dataclass(frozen=True)
class Problem:
    """Quantized inputs on a device, and what they were made of."""

    inputs: Inputs
    query: Tensor
    query_scale: Tensor
    ring: Ring8Bit
    scales: RingScales

    def first_queries(self, count: int) -> "Problem":
        return replace(
            self,
            inputs=replace(self.inputs, query=self.inputs.query[:, :count]),
            query=self.query[:, :count].contiguous(),
            query_scale=self.query_scale[..., :count].contiguous(),
        )

    def spoiled(self, valid_length: int) -> "Problem":
        """The same, with slots that are not valid full of the worst that they may hold."""
        dtype = self.ring.key.dtype
        key, value = (x.view(torch.uint8).clone() for x in (self.ring.key, self.ring.value))
        worst_key, worst_value = WORST[dtype]
        key[:, valid_length:] = worst_key
        # Places, not keys: within the last group of 16 that holds a valid key they are mixed.
        value[..., -(-valid_length // GROUP) * GROUP :] = worst_value
        return replace(self, ring=Ring8Bit(key.view(dtype), value.view(dtype)))

    def even(self) -> "Problem":
        """The same, with even attention to values whose mean is a standard deviation from zero."""
        value = self.ring.value
        drawn = torch.randn(value.shape, device=value.device)
        scale = torch.tensor(4 / LARGEST[value.dtype], device=value.device)
        return replace(
            self,
            query=torch.zeros_like(self.query),
            ring=replace(self.ring, value=quantize(1 + drawn, scale, value.dtype)),
            scales=replace(self.scales, value_mean=torch.zeros_like(self.scales.value_mean)),
        )


def problem(
    queries: int,
    slots: int,
    heads: int,
    head_dim: int,
    batch: int,
    device: torch.device,
    dtype: torch.dtype = torch.int8,
) -> Problem:
    drawn = draw(queries, slots, heads, head_dim, batch)
    inputs = Inputs(*(getattr(drawn, n).to(device) for n in ("query", "key", "value")))
    half = max(1, slots // 2)
    scales = calibrate(inputs.query, inputs.key[:, :half], inputs.value[:, :half], dtype)
    query, query_scale = quantize_queries(inputs.query, scales, dtype)
    ring = quantize_ring(inputs.key, inputs.value, scales, dtype)
    return Problem(inputs, query, query_scale, ring, scales)


def exact(inputs: Inputs, valid_length: int) -> Tensor:
    """Attention in float64, one head at a time: ``[B, T, H, D]``."""
    output = torch.empty_like(inputs.query, dtype=torch.float64)
    for b in range(inputs.query.shape[0]):
        for h in range(inputs.query.shape[2]):
            query = inputs.query[b, :, h].double() / math.sqrt(inputs.query.shape[3])
            logits = query @ inputs.key[b, :valid_length, h].double().T
            value = inputs.value[b, :valid_length, h].double()
            output[b, :, h] = torch.softmax(logits, dim=1) @ value
    return output


def relative(found: Tensor, wanted: Tensor) -> float:
    wanted = wanted.double()
    return float((found.double() - wanted).norm() / wanted.norm())


def rounding(at: Problem, valid_length: int) -> Tensor:
    """Limit of the difference of outputs ``[B, T, H, D]`` whose weights are rounded differently.

    In INT8 every weight is rounded by the same step, and many together hardly show. In FP8 the step
    is up to an eighth of the weight, so where few keys count, an eighth of what they add: more than
    ``ELEMENT`` in channels in which one of them is large. Errors of several weights are taken to
    add up like random ones.
    """
    if at.query.dtype == torch.int8:
        return torch.zeros((), device=at.query.device)
    heads = [
        torch.einsum("bts,bsd->btd", weight.square(), value.square()).sqrt()
        for weight, value in _weights_and_values(at, valid_length)
    ]
    return OF_WEIGHTS * torch.stack(heads, dim=2) * at.scales.value_scale


def _weights_and_values(at: Problem, valid_length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields weights ``[B, T, S]`` and values ``[B, S, D]``, unscaled, of each head in float32."""
    values = restore_values(at.ring.value, at.ring.key.shape[1])[:, :valid_length].float()
    for h in range(at.query.shape[2]):
        dot = products(at.query[:, :, h : h + 1], at.ring.key[:, :valid_length, h : h + 1])[:, 0]
        scale = at.query_scale[:, h, :, None] * at.scales.key_scale[h]
        yield torch.softmax(dot * (scale / math.sqrt(at.query.shape[3])), dim=2), values[:, :, h]


def first_wrong(found: Tensor, wanted: Tensor, besides: Tensor | float = 0.0) -> str | None:
    """The first element ``[B, T, H, D]`` that is no rounding, in words; None if there is none.

    Args:
        found: what a kernel gave.
        wanted: what it should have given.
        besides: how far an element may be away besides ``ELEMENT``.
    """
    wanted = wanted.double()
    size = wanted.square().mean(dim=3, keepdim=True).sqrt()
    wrong = ~((found.double() - wanted).abs() <= ELEMENT * size + besides)
    if not wrong.any():
        return None
    b, t, h, d = wrong.nonzero()[0].tolist()
    rows = wrong.any(dim=3)
    tiles = sorted({t // TILE for t in rows.any(dim=2).any(dim=0).nonzero().flatten().tolist()})
    return (
        f"first at batch {b}, query {t} (row {t % TILE} of tile {t // TILE}), head {h}, "
        f"channel {d}: {float(found[b, t, h, d]):.6g} instead of {float(wanted[b, t, h, d]):.6g}; "
        f"{int(wrong.sum())} of {wrong.numel()} elements in {int(rows.sum())} rows, "
        f"in {int(wrong.any(dim=1).any(dim=0).any(dim=0).sum())} channels, query tiles {tiles[:8]}"
    )


def rounded_apart(wanted: Tensor, besides: Tensor, few: bool) -> float:
    """The part of the relative error that ``besides`` accounts for."""
    return float(besides.norm() / wanted.norm()) * (1.0 if few else OF_MANY)


def check_products(attend: Attention, at: Problem) -> Iterator[str]:
    """Problems with the products of the first tile: exact in INT8, nearly so in FP8."""
    wanted = first_products(at.query, at.ring)
    found = torch.full((TILE, TILE), 0x7F7F7F7F, dtype=torch.int32, device=at.query.device)
    found = found.view(wanted.dtype)
    length = torch.tensor([at.ring.key.shape[1]], device=at.query.device)
    attend(at.query, at.query_scale, at.ring, at.scales, length, products=found)
    found = found[: wanted.shape[0], : wanted.shape[1]]
    if wanted.dtype == torch.int32:
        wrong = found != wanted
    else:
        sizes = first_products(
            at.query.float().abs(), Ring8Bit(at.ring.key.float().abs(), at.ring.value)
        )
        wrong = ~((found - wanted).abs() <= PRODUCTS_KEPT * sizes)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        yield (
            f"{int(wrong.sum())} of {wrong.numel()} products differ, first at row {row}, key "
            f"{column}: {found[row, column].item()} instead of {wanted[row, column].item()}; "
            f"row 0 begins {found[0, :8].tolist()}, should be {wanted[0, :8].tolist()}; "
            f"column 0 begins {found[:8, 0].tolist()}, should be {wanted[:8, 0].tolist()}"
        )


def check_single_keys(
    attend: Attention, head_dim: int, device: torch.device, dtype: torch.dtype = torch.int8
) -> Iterator[str]:
    """Problems when each query sees one key, whose values say which it was.

    The products of a query with its own key are the largest number squared for each channel, with
    others far less, and the scale leaves nothing to the others.
    """
    slots, queries = 3 * TILE - 5, TILE
    generator = torch.Generator().manual_seed(0)
    largest = LARGEST[dtype]
    key = (torch.randint(0, 2, (1, slots, 1, head_dim), generator=generator) * 2 - 1) * largest
    seen = torch.arange(queries) * 37 % slots
    value = torch.randint(-127, 128, (1, slots, 1, head_dim), generator=generator)
    value = value.to(dtype).float()
    wanted = value[0, seen, 0].to(device)
    ring = Ring8Bit(
        key.to(device).to(dtype), transpose_values(value.to(device).to(dtype)).contiguous()
    )
    ones = torch.ones(1, head_dim, device=device)
    scales = RingScales(ones, 0 * ones, torch.ones(1, device=device), 0 * ones, ones)
    scale = torch.full((1, 1, queries), 16 / largest**2, device=device)
    length = torch.tensor([slots], device=device)
    output = attend(ring.key[:, seen].contiguous(), scale, ring, scales, length)
    # bfloat16 has every integer up to 256; from other keys comes next to nothing.
    found = output[0, :, 0].float().round()
    for row in (found != wanted).any(dim=1).nonzero().flatten().tolist()[:4]:
        matches = (value[0, :, 0].to(device) == found[row]).sum(dim=1)
        best = int(matches.argmax())
        yield (
            f"query {row} should see key {int(seen[row])}; "
            f"{int((found[row] == wanted[row]).sum())} of {head_dim} channels are its values; "
            f"key {best} agrees in {int(matches[best])}; found {found[row, :8].tolist()}, "
            f"should be {wanted[row, :8].tolist()}"
        )


@dataclass(frozen=True)
class Found:
    against_emulation: float
    against_float64: float
    problem: str | None


def check_output(
    attend: Attention, at: Problem, valid_length: int, dtype: torch.dtype = torch.bfloat16
) -> Found:
    """Compares with the emulation and, of the unquantized inputs, with float64."""
    spoiled = at.spoiled(valid_length)
    length = torch.tensor([valid_length], device=at.query.device)
    output = torch.empty(at.query.shape, dtype=dtype, device=at.query.device)
    output.view(torch.uint8).fill_(POISON)
    attend(at.query, at.query_scale, spoiled.ring, at.scales, length, output=output)
    emulated = emulate(at.query, at.query_scale, at.ring, at.scales, valid_length)
    close = relative(output, emulated)
    error = relative(output, exact(at.inputs, valid_length))
    few = at.query.shape[1] < FEW_QUERIES
    besides = rounding(at, valid_length)
    limit = AGAINST_FLOAT64[at.query.dtype, at.query.shape[3]]
    problem = None
    if not close <= AGAINST_EMULATION + rounded_apart(emulated, besides, few):
        problem = first_wrong(output, emulated, besides) or "many small differences"
    elif not error <= limit * (2 if few else 1):
        problem = "close to the emulation, but that is too far from float64"
    return Found(close, error, problem)
