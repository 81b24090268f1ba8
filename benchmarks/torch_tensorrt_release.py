"""Adapts Torch-TensorRT 2.11 to TensorRT-RTX 1.7, for measurements on a machine with torch 2.11.

Without this the import fails. ``vidc`` builds with release 2.13 or later, which needs none of this.
"""

import sys
from importlib import import_module
from typing import Any

import torch

RELEASE = "2.11"
ADAPTED = {
    "tensorrt_rtx.plugin": "marked as missing: its bindings are not in the package",
    "tensorrt_rtx.IAlgorithmSelector": "an empty class: it stands in an annotation alone",
    "tensorrt_rtx.ITensor.dtype": "accepts the type that a network's output has already",
    "decompositions": "without attention's, as in release 2.13",
    "converter of attention": "without its check that queries and keys have one shape",
}
"""Parts of the two packages with what is changed."""


def supply_names() -> None:
    """Supplies what the release imports from TensorRT-RTX; before its import."""
    product = import_module("tensorrt_rtx")
    sys.modules["tensorrt.plugin"] = None  # type: ignore[assignment]  # Not found, for the import.
    product.IAlgorithmSelector = object  # type: ignore[attr-defined]
    declared = product.ITensor.dtype

    def set_dtype(tensor: Any, dtype: Any) -> None:
        if declared.fget(tensor) != dtype:
            raise TypeError(f"{tensor.name} is {declared.fget(tensor)}, not {dtype}")

    product.ITensor.dtype = property(declared.fget, set_dtype)


def keep_attention() -> None:
    """Keeps attention whole in the lowering and lifts its converter's limit; after the import."""
    lowering = import_module("torch_tensorrt.dynamo.lowering")
    table = import_module("torch_tensorrt.dynamo.lowering._decompositions")
    conversion = import_module("torch_tensorrt.dynamo.conversion")
    decompositions = table.get_decompositions

    def without_attention(*settings: Any) -> dict[Any, Any]:
        attention = table.ATTENTION_DECOMPOSITION_OPS
        return {op: by for op, by in decompositions(*settings).items() if op not in attention}

    for module in (lowering, import_module("torch_tensorrt.dynamo._compiler")):
        module.get_decompositions = without_attention  # type: ignore[attr-defined]
    register = conversion.dynamo_tensorrt_converter(
        torch.ops.aten.scaled_dot_product_attention.default,
        priority=conversion.ConverterPriority.HIGH,
    )
    register(conversion.aten_ops_converters.aten_ops_scaled_dot_product_attention)
