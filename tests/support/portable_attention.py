"""The portable kernel of ring attention by its C interface, with the operator's arguments."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from attention_8bit.kernel import FORMATS, OUTPUT_TYPES, POISON, Arguments
from torch import Tensor

from vidc.plugins.ops.ring_attention_8bit import AttentionArguments

OF_WEIGHTS = 5e-4
"""Largest error that rounding weights to float16 adds, relative to the largest output."""


def attending(launch: Callable[[Any], int]) -> Callable[..., Tensor]:
    """An operator of what takes a pointer to the arguments and returns an error's number."""

    def attend(*values: Any) -> Tensor:
        given = AttentionArguments(*values)
        dtype = getattr(torch, given.dtype)
        batch, tokens, heads, head_dim = given.query.shape
        output = torch.empty(given.query.shape, dtype=dtype, device=given.query.device)
        output.view(torch.uint8).fill_(POISON)
        read = (given.query, given.query_scale, given.key_cache, given.key_scale)
        read += (given.value_cache, given.value_scale, given.value_mean, given.valid_length)
        scale = given.output_scale
        arguments = Arguments(
            *(tensor.data_ptr() for tensor in read),
            None if scale is None else scale.data_ptr(), output.data_ptr(), None, None,
            batch, tokens, given.key_cache.shape[1], given.value_cache.shape[3], heads, head_dim,
            FORMATS[given.query.dtype], OUTPUT_TYPES[dtype], 0,
        )  # fmt: skip
        error = launch(ctypes.byref(arguments))
        assert error == 0, f"error {error}"
        return output

    return attend
