"""Places of tensors in the kernels' first argument, by the structures in ``plugins/cuda``."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

MAPS = 24
"""The word behind those of the argument: of the first tensor map, ``recorded_cuda.cpp``."""
_QKV = ("qkv", "query_weight", "key_weight", "cos", "sin", "position")
_QKV_WORDS = 9
"""Words of ``QkNormRope``: the tensors above, and numbers."""
_FIELDS: dict[str, Sequence[str]] = {
    "gelu_quantize": ("x", "output_scale", "output_mean", "output 0"),
    "ring_attention_16bit": ("query", "key_cache", "value_cache", "valid_length", "output 0"),
}
_TO_8BIT = (
    "output 0", "output 1", "key_cache", "value_cache", "key_scale", "value_scale", "key_mean",
)  # fmt: skip
_TRANSPOSED = _QKV_WORDS + len(_TO_8BIT)
"""Index of the first word of ``ValueTranspose``."""
_PORTABLE_8BIT = (
    "query", "query_scale", "key_cache", "key_scale", "value_cache", "value_scale", "value_mean",
    "valid_length", "output_scale", "output 0",
)  # fmt: skip
_HOPPER_8BIT = (
    "query_scale", "key_scale", "value_scale", "value_mean", "valid_length", "output_scale",
    "output 0",
)  # fmt: skip


def fields(
    operator: str,
    taken: dict[str, Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    workspace: Tensor | None,
) -> list[dict[int, int]]:
    """Lists the words of each launch that are addresses, 0 for a tensor that is not given.

    Args:
        operator: its name.
        taken: its arguments.
        inputs: the tensors among them, in order, as the plugin has them.
        outputs: the plugin's.
        workspace: what it was given; for Hopper's own kernel alone.
    """
    names = [name for name, value in taken.items() if isinstance(value, Tensor)]
    address = {name: tensor.data_ptr() for name, tensor in zip(names, inputs, strict=True)}
    results = [tensor for tensor in outputs if tensor.data_ptr() not in address.values()]
    address |= {f"output {i}": tensor.data_ptr() for i, tensor in enumerate(results)}

    def words(names: Sequence[str], first: int = 0) -> dict[int, int]:
        return {first + i: address.get(name, 0) for i, name in enumerate(names)}

    if operator in _FIELDS:
        return [words(_FIELDS[operator])]
    if operator == "qk_norm_rope_ring_write":
        return [words(_QKV) | words(("output 0", "key_cache", "value_cache"), _QKV_WORDS)]
    if operator == "qk_norm_rope_ring_write_static":
        write = words(_QKV) | words(_TO_8BIT, _QKV_WORDS)
        if not taken["quantize_query"]:
            write[_QKV_WORDS + 1] = 0
        if not taken["value_transposed"]:
            return [write]
        write[_QKV_WORDS + _TO_8BIT.index("value_cache")] = 0
        qkv = taken["qkv"]
        values = address["qkv"] + qkv.shape[2] // 3 * 2 * qkv.itemsize
        transposed = words(("value_cache", "value_scale", "position"), _TRANSPOSED + 1)
        return [write | {_TRANSPOSED: values} | transposed]
    assert operator == "ring_attention_8bit"
    if workspace is None:
        return [words(_PORTABLE_8BIT)]
    zeroed = {0: workspace.data_ptr()}
    maps = words(("query", "key_cache", "value_cache"), MAPS)
    return [zeroed, words(_HOPPER_8BIT) | {8: workspace.data_ptr()} | maps]
