"""Attention over a ring of 16 bits: arguments, what they give, and its kernel's C interface."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from operators import ROUNDING, SMALLEST, draw, on
from torch import Tensor

POISON = 0xFF
"""Fills outputs before a launch: NaN of both dtypes."""
TYPES = {torch.bfloat16: 0, torch.float16: 1}
CPU = torch.device("cpu")


class Arguments(ctypes.Structure):
    """``struct VidcRingAttention16Bit``."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("query", "key", "value", "valid_length", "output")),
        *(
            (n, ctypes.c_int32)
            for n in ("batch", "queries", "slots", "heads", "head_dim", "type")
        ),
    )  # fmt: skip


def attending(launch: Callable[[Any], int]) -> Callable[..., Tensor]:
    """An operator of what takes a pointer to the arguments and returns an error's number."""

    def attend(query: Tensor, key: Tensor, value: Tensor, valid_length: Tensor) -> Tensor:
        output = torch.empty_like(query)
        output.view(torch.uint8).fill_(POISON)
        batch, tokens, heads, head_dim = query.shape
        tensors = (query, key, value, valid_length, output)
        sizes = (batch, tokens, key.shape[1], heads, head_dim, TYPES[query.dtype])
        given = Arguments(*(tensor.data_ptr() for tensor in tensors), *sizes)
        error = launch(ctypes.byref(given))
        assert error == 0, f"error {error}"
        return output

    return attend


def arguments(
    batch: int = 2,
    tokens: int = 5,
    heads: int = 3,
    head_dim: int = 64,
    slots: int = 40,
    valid: int = 37,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 1,
    peak: float = 1.0,
    size: float = 1.0,
) -> dict[str, Tensor]:
    """Arguments of ``ring_attention``; logits deviate by ``peak`` and values by ``size``."""
    tensor = draw(seed)
    ring = (batch, slots, heads, head_dim)
    return {
        "query": tensor(batch, tokens, heads, head_dim, dtype=dtype, deviation=peak),
        "key_cache": tensor(*ring, dtype=dtype),
        "value_cache": tensor(*ring, dtype=dtype, deviation=size),
        "valid_length": torch.tensor([valid]),
    }


def held(
    attend: Callable[..., Tensor], taken: dict[str, Tensor], device: torch.device = CPU
) -> None:
    """Holds attention to a formula in float64, by what rounding explains of each output.

    Logits are computed in float32; weights are rounded to the dtype, and so is the output.
    """
    found = attend(*on(device, taken).values())
    dtype, slots = taken["query"].dtype, taken["key_cache"].shape[1]
    valid = min(max(int(taken["valid_length"]), 1), slots)
    query, key, value = (
        taken[name][:, :many].to(device).double().transpose(1, 2)
        for name, many in (("query", None), ("key_cache", valid), ("value_cache", valid))
    )
    root = query.shape[-1] ** 0.5
    weights = torch.softmax(query @ key.mT / root, -1)
    wanted, spread = weights @ value, weights @ value.abs()
    of_logits = 2.0**-22 * (query.abs() @ key.abs().mT).amax(-1, keepdim=True) / root
    # Where a weight is too small for the dtype it is rounded to nothing.
    lost = valid * SMALLEST[dtype] * value.abs().amax()
    allowed = 1.02 * ROUNDING[dtype] * (2 * wanted.abs() + spread) + SMALLEST[dtype]
    allowed = allowed + 2 * of_logits * spread + lost
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert torch.isfinite(found).all()
    excess = (found.double() - wanted.transpose(1, 2)).abs() - allowed.transpose(1, 2)
    assert excess.max().item() <= 0, f"{excess.max().item()} above what rounding explains"
