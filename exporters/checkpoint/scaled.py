"""Scaled FP8 checkpoints: each weight in FP8, with its scale beside it."""

import json
from collections.abc import Mapping
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALES = ("scale_weight", "weight_scale")
_OF_INPUTS = ("scale_input", "input_scale")
"""Scales of activations, which a weight does not depend on."""
_FORMAT = "comfy_quant"
"""Settings of one layer as JSON in bytes."""
_FORMAT_KEYS = frozenset({"format", "full_precision_matrix_mult"})
_MARKER = "scaled_fp8"


def dequantize(
    tensors: Mapping[str, LazyTensor], source: object
) -> tuple[dict[str, LazyTensor], int]:
    """Multiplies FP8 weights by their scales when they are loaded, in float32.

    Args:
        tensors: of a checkpoint; unchanged if none has a scale.
        source: what to call the checkpoint.

    Returns:
        The tensors without scales, and the number of dequantized weights.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-DTYPE``, a weight is quantized in another way.
    """
    found = dict(tensors)
    count = 0
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf == _FORMAT:
            _check_format(source, name, tensor)
        if leaf in (_MARKER, _FORMAT, *_OF_INPUTS):
            del found[name]
        if leaf not in _SCALES:
            continue
        weight = found.get(f"{module}.weight")
        scale = found.pop(name)
        if weight is None or weight.dtype not in _FP8:
            stored = "no weight" if weight is None else f"a weight in {weight.dtype}"
            _refuse(source, f"{name} is the scale of {stored}")
        shape = _broadcast(scale.shape, weight.shape)
        if shape is None:
            _refuse(source, f"{name} is {list(scale.shape)}, its weight {list(weight.shape)}")
        load = partial(_product, weight, scale, shape)
        found[f"{module}.weight"] = LazyTensor(weight.shape, torch.float32, load)
        count += 1
    return found, count


def _broadcast(scale: tuple[int, ...], weight: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape of a scale of a whole weight or of each of its rows; None for any other."""
    if scale in ((), (1,)):
        return ()
    if weight and scale in (weight[:1], (weight[0], *(1 for _ in weight[1:]))):
        return (weight[0], *(1 for _ in weight[1:]))
    return None


def _product(weight: LazyTensor, scale: LazyTensor, shape: tuple[int, ...]) -> Tensor:
    return weight.load().float() * scale.load().float().reshape(shape)


def _check_format(source: object, name: str, tensor: LazyTensor) -> None:
    try:
        settings = json.loads(bytes(tensor.load().flatten().tolist()))
        plain = settings.keys() <= _FORMAT_KEYS and settings["format"].startswith("float8_")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        settings, plain = None, False
    if not plain:
        _refuse(source, f"{name} says {settings}")


def _refuse(source: object, what: str) -> NoReturn:
    raise BuildError(
        "VIDC-CHECKPOINT-DTYPE",
        f"{source} is quantized in a form that vidc does not read: {what}",
        "use a checkpoint that is not quantized: float32, bfloat16 or float16; or scaled FP8 with "
        "one scale for each weight or row",
    )
