"""Quantized linear layers of a parsed network, found by matching its layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vidc.compiler.backends.tensorrt.engine_layers import nodes_of
from vidc.compiler.quantize.tensors import (
    input_factor_name,
    input_mean_name,
    input_scale_name,
    require_asked,
)
from vidc.exporters.linear_tensors import LinearTensors
from vidc.plugins.errors import BuildError

_OF_INPUTS = (input_scale_name(""), input_factor_name(""), input_mean_name(""))


@dataclass(frozen=True)
class QuantizedMatmul:
    """Matmul with an 8-bit weight.

    Attributes:
        name: name of its layer.
        tensors: names of the network inputs that it reads.
        weights: dtype of the weight before dequantization, such as ``fp8``.
        inputs: dtype of the input before dequantization; high precision if it is not quantized.
    """

    name: str
    tensors: LinearTensors
    weights: str
    inputs: str

    @property
    def computes(self) -> bool:
        """True if it should run in 8 bits."""
        return self.tensors.input_scale is not None


def quantized_matmuls(module: Any, definition: Any) -> list[QuantizedMatmul]:
    """Returns all matmuls with 8-bit weights."""
    return _Edges(module, definition).products()


def qdq_nodes(module: Any, definition: Any) -> frozenset[str]:
    """Returns the ONNX nodes that are Q, DQ or scale the input of a Q."""
    return _Edges(module, definition).rounding()


def require_quantized(
    component: str, module: Any, definition: Any, asked: tuple[LinearTensors, ...]
) -> None:
    """Rejects a network whose quantized linear layers or Q/DQ counts are not those expected.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT`` with the component and the first difference.
    """
    found = quantized_matmuls(module, definition)
    require_asked(component, asked, [product.tensors for product in found])
    kinds = [definition.get_layer(index).type for index in range(definition.num_layers)]
    inputs = {linear.input_scale for linear in asked} - {None}
    # Linear layers that share an input scale share its Q/DQ.
    wanted = (len(inputs), len(inputs) + len(asked))
    there = tuple(kinds.count(k) for k in (module.LayerType.QUANTIZE, module.LayerType.DEQUANTIZE))
    if there != wanted:
        raise BuildError(
            "VIDC-QUANTIZE-COUNT",
            f"{component}: the recipe needs {wanted[0]} Q and {wanted[1]} DQ, the parsed network "
            f"has {there[0]} and {there[1]}",
            "report it with this message; a recipe that leaves the layer out builds",
        )


class _Edges:
    """Index of a network's layers by their inputs and outputs."""

    def __init__(self, module: Any, definition: Any) -> None:
        self._kinds = module.LayerType
        self._module = module
        self._layers = [definition.get_layer(index) for index in range(definition.num_layers)]
        self._given = {
            layer.get_output(index).name: layer
            for layer in self._layers
            for index in range(layer.num_outputs)
        }
        self._taken: dict[str, list[Any]] = {}
        for layer in self._layers:
            for index in range(layer.num_inputs):
                tensor = layer.get_input(index)
                if tensor is not None:
                    self._taken.setdefault(tensor.name, []).append(layer)
        self._views = (self._kinds.SHUFFLE, self._kinds.CAST, self._kinds.IDENTITY)

    def products(self) -> list[QuantizedMatmul]:
        """Returns the matmuls whose 8-bit weight is an input of the network."""
        found = []
        for layer in self._layers:
            if layer.type != self._kinds.MATRIX_MULTIPLY:
                continue
            of_weight = self._behind(layer.get_input(1), self._kinds.DEQUANTIZE)
            if of_weight is None:
                continue
            steps, *of_input = self._quantized(layer.get_input(0))
            weight = of_weight.get_input(0)
            tensors = LinearTensors(weight.name, self._scale(layer), *of_input)
            inputs = layer.get_input(0) if steps is None else steps
            found.append(QuantizedMatmul(layer.name, tensors, type_name(weight), type_name(inputs)))
        return found

    def rounding(self) -> frozenset[str]:
        """Returns the nodes of each Q and DQ, and the views and scalings before a Q."""
        found = set[str]()
        for layer in self._layers:
            if layer.type not in (self._kinds.QUANTIZE, self._kinds.DEQUANTIZE):
                continue
            found.update(nodes_of(layer.metadata))
            if layer.type == self._kinds.DEQUANTIZE:
                continue
            before, scaled = self._given.get(layer.get_input(0).name), False
            while before is not None:
                if self._scales(before):
                    scaled = True
                # A constant after the scaling belongs to Q; one before it belongs to the network.
                elif before.type not in self._views and (scaled or not self._by_constant(before)):
                    break
                found.update(nodes_of(before.metadata))
                before = self._given.get(before.get_input(0).name)
        return frozenset(found)

    def _by_constant(self, layer: Any) -> bool:
        """Returns True if the second operand of an elementwise layer is a constant."""
        if layer.type != self._kinds.ELEMENTWISE:
            return False
        given = self._given.get(layer.get_input(1).name)
        while given is not None and given.num_inputs == 1:
            given = self._given.get(given.get_input(0).name)
        return given is not None and given.type == self._kinds.CONSTANT

    def _scales(self, layer: Any) -> bool:
        """Returns True if a layer applies the scale, factor or mean of a quantized input."""
        if layer.type != self._kinds.ELEMENTWISE:
            return False
        name = self._source(layer.get_input(1)) or ""
        return name.endswith(_OF_INPUTS)

    def _quantized(self, tensor: Any) -> tuple[Any, str | None, str | None, str | None]:
        """Returns an input before its DQ and the names of its scale, factor and mean, or Nones."""
        after = self._behind(tensor, self._kinds.DEQUANTIZE)
        before = None if after is None else self._behind(after.get_input(0), self._kinds.QUANTIZE)
        if after is None or before is None:
            return None, None, None, None
        scale = factor = mean = None
        for operation, name in self._operations(before.get_input(0)):
            if scale is None and operation == self._module.ElementWiseOperation.DIV:
                scale = name
            elif scale is not None:
                # Earlier operations may be the network's own.
                if name is not None and name.endswith(input_factor_name("")) and factor is None:
                    factor = name
                    continue
                mean = name if name is not None and name.endswith(input_mean_name("")) else None
                break
        return after.get_input(0), scale, factor, mean

    def _scale(self, product: Any) -> str:
        """Returns the network input that scales a matmul's result, or ""."""
        tensor = product.get_output(0)
        while True:
            takers = self._taken.get(tensor.name, [])
            if len(takers) != 1:
                return ""
            if takers[0].type not in self._views:
                operations = list(self._operations(takers[0].get_output(0)))
                return (operations[0][1] or "") if operations else ""
            tensor = takers[0].get_output(0)

    def _operations(self, tensor: Any) -> Iterator[tuple[Any, str | None]]:
        """Yields the elementwise operations before a tensor, last first, and second operands."""
        layer = self._given.get(tensor.name)
        while layer is not None and layer.type == self._kinds.ELEMENTWISE:
            # The binding returns the base class.
            layer.__class__ = self._module.IElementWiseLayer
            yield layer.op, self._source(layer.get_input(1))
            layer = self._given.get(layer.get_input(0).name)

    def _source(self, tensor: Any) -> str | None:
        """Returns the network input that a tensor is a view of, or None."""
        while (layer := self._given.get(tensor.name)) is not None:
            if layer.type not in self._views:
                return None
            tensor = layer.get_input(0)
        name: str = tensor.name
        return name

    def _behind(self, tensor: Any, kind: Any) -> Any:
        """Returns the layer of a kind that produces a tensor through views, or None."""
        layer = self._given.get(tensor.name)
        while layer is not None and layer.type in self._views:
            layer = self._given.get(layer.get_input(0).name)
        return layer if layer is not None and layer.type == kind else None


def type_name(tensor: Any) -> str:
    """Returns the dtype of a tensor in lower case."""
    return str(tensor.dtype).rpartition(".")[2].lower()
