"""Checks of an attention kernel: what differs, and where first."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_8bit.calibration import calibrate
from attention_8bit.emulation import emulate
from attention_8bit.inputs import Inputs, draw
from attention_8bit.kernel import POISON, TILE, Attention, first_products
from vidc.plugins.ring_int8 import (
    Int8Ring,
    RingScales,
    quantize_queries,
    quantize_ring,
    transpose_values,
)

AGAINST_EMULATION = 0.006
"""Relative L2: bfloat16's 0.0017, and weights that the approximate exponential moved by one."""
AGAINST_FLOAT64 = 0.03
FEW_QUERIES = 64
"""Fewer may be twice as far: a single one is no mean."""
ELEMENT = 0.1
"""Of an element, relative to its row's root mean square: more than that is wrong, not rounding."""


@dataclass(frozen=True)
class Problem:
    """Quantised inputs on a device, and what they were made of."""

    inputs: Inputs
    query: Tensor
    query_scale: Tensor
    ring: Int8Ring
    scales: RingScales

    def first_queries(self, count: int) -> "Problem":
        return replace(
            self,
            inputs=replace(self.inputs, query=self.inputs.query[:, :count]),
            query=self.query[:, :count].contiguous(),
            query_scale=self.query_scale[:, :count].contiguous(),
        )

    def spoiled(self, valid_length: int) -> "Problem":
        """The same, with slots that are not valid full of the largest magnitudes."""
        key, value = self.ring.key.clone(), self.ring.value.clone()
        key[:, valid_length:] = -128
        group = 16
        # Places, not keys: within the last group of 16 that holds a valid key they are mixed.
        value[..., -(-valid_length // group) * group :] = -128
        return replace(self, ring=Int8Ring(key, value))


def problem(
    queries: int, slots: int, heads: int, head_dim: int, batch: int, device: torch.device
) -> Problem:
    drawn = draw(queries, slots, heads, head_dim, batch)
    inputs = Inputs(*(getattr(drawn, n).to(device) for n in ("query", "key", "value")))
    half = max(1, slots // 2)
    scales = calibrate(inputs.query, inputs.key[:, :half], inputs.value[:, :half])
    query, query_scale = quantize_queries(inputs.query, scales)
    return Problem(
        inputs, query, query_scale, quantize_ring(inputs.key, inputs.value, scales), scales
    )


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


def first_wrong(found: Tensor, wanted: Tensor) -> str | None:
    """The first element ``[B, T, H, D]`` that is no rounding, in words; None if there is none."""
    wanted = wanted.double()
    size = wanted.square().mean(dim=3, keepdim=True).sqrt()
    wrong = ~((found.double() - wanted).abs() <= ELEMENT * size)
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


def check_products(attend: Attention, at: Problem) -> Iterator[str]:
    """Problems with the integer products of the first tile."""
    found = torch.full((TILE, TILE), 0x7F7F7F7F, dtype=torch.int32, device=at.query.device)
    length = torch.tensor([at.ring.key.shape[1]], device=at.query.device)
    attend(at.query, at.query_scale, at.ring, at.scales, length, products=found)
    wanted = first_products(at.query, at.ring)
    found = found[: wanted.shape[0], : wanted.shape[1]]
    wrong = found != wanted
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        yield (
            f"{int(wrong.sum())} of {wrong.numel()} products differ, first at row {row}, key "
            f"{column}: {int(found[row, column])} instead of {int(wanted[row, column])}; "
            f"row 0 begins {found[0, :8].tolist()}, should be {wanted[0, :8].tolist()}; "
            f"column 0 begins {found[:8, 0].tolist()}, should be {wanted[:8, 0].tolist()}"
        )


def check_single_keys(attend: Attention, head_dim: int, device: torch.device) -> Iterator[str]:
    """Problems when each query sees one key, whose values say which it was.

    The products of a query with its own key are 127 times 127 for each channel, with others far
    less, and the scale leaves nothing to the others.
    """
    slots, queries = 3 * TILE - 5, TILE
    generator = torch.Generator().manual_seed(0)
    key = torch.randint(0, 2, (1, slots, 1, head_dim), generator=generator) * 254 - 127
    seen = torch.arange(queries) * 37 % slots
    value = torch.randint(-127, 128, (1, slots, 1, head_dim), generator=generator)
    wanted = value[0, seen, 0].to(device)
    ring = Int8Ring(
        key.to(device, torch.int8), transpose_values(value.to(device, torch.int8)).contiguous()
    )
    ones = torch.ones(1, head_dim, device=device)
    scales = RingScales(ones, 0 * ones, torch.ones(1, device=device), 0 * ones, ones)
    scale = torch.full((1, queries, 1), 1e-3, device=device)
    length = torch.tensor([slots], device=device)
    output = attend(ring.key[:, seen].contiguous(), scale, ring, scales, length)
    # bfloat16 has every integer up to 256; from other keys comes 1e-30.
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
    """Compares with the emulation and, of the unquantised inputs, with float64."""
    spoiled = at.spoiled(valid_length)
    length = torch.tensor([valid_length], device=at.query.device)
    output = torch.empty(at.query.shape, dtype=dtype, device=at.query.device)
    output.view(torch.uint8).fill_(POISON)
    attend(at.query, at.query_scale, spoiled.ring, at.scales, length, output=output)
    emulated = emulate(at.query, at.query_scale, at.ring, at.scales, valid_length)
    close = relative(output, emulated)
    error = relative(output, exact(at.inputs, valid_length))
    few = at.query.shape[1] < FEW_QUERIES
    problem = None
    if not close <= AGAINST_EMULATION:
        problem = first_wrong(output, emulated) or "many small differences"
    elif not error <= AGAINST_FLOAT64 * (2 if few else 1):
        problem = "close to the emulation, but that is too far from float64"
    return Found(close, error, problem)
