"""Weights of an ONNX graph as references into safetensors files."""

from collections.abc import Mapping
from pathlib import PurePosixPath

import onnx_ir as ir

from vidc.exporters.checkpoint.write import Placement

WEIGHTS_FOLDER = PurePosixPath("weights")


def refer_to_weights(
    model: ir.Model,
    inputs: frozenset[str],
    placements: Mapping[str, Mapping[str, Placement]],
) -> None:
    """Turns the graph inputs that are weights into initializers with external data, in place.

    Args:
        model: unused weights are dropped.
        inputs: names of the graph's inputs that are not weights.
        placements: the ``weight_layout`` of each weights file, by its name without suffix.

    Raises:
        ValueError: a weight is in no file, or has another shape or dtype there.
    """
    values = list(model.graph.inputs)
    model.graph.inputs[:] = [value for value in values if value.name in inputs]
    for value in values:
        if value.name not in inputs and value.uses():
            value.const_value = _external(value, placements)
            model.graph.register_initializer(value)


def _external(
    value: ir.Value, placements: Mapping[str, Mapping[str, Placement]]
) -> ir.ExternalTensor:
    stem, _, key = value.name.partition(".")
    placement = placements.get(stem, {}).get(key)
    if placement is None:
        raise ValueError(f"weight {value.name} is in none of the files {sorted(placements)}")
    dtype = ir.tensor_adapters.from_torch_dtype(placement.dtype)
    if value.dtype != dtype or tuple(value.shape) != placement.shape:
        raise ValueError(
            f"weight {value.name} is {value.dtype} {value.shape} in the graph, "
            f"{dtype} {list(placement.shape)} in its file"
        )
    return external(value.name, stem, placement)


def external(name: str, stem: str, placement: Placement) -> ir.ExternalTensor:
    """Returns an external tensor ``name`` in the weights file ``stem``."""
    return ir.ExternalTensor(
        location=str(WEIGHTS_FOLDER / f"{stem}.safetensors"),
        offset=placement.offset,
        length=placement.nbytes,
        dtype=ir.tensor_adapters.from_torch_dtype(placement.dtype),
        shape=ir.Shape(placement.shape),
        name=name,
    )
