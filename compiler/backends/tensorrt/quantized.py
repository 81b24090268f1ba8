"""Quantized linear layers and convolutions of a parsed network, found by matching its layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.compiler.backends.tensorrt.engine_layers import nodes_of, require_printable
from vidc.plugins.errors import BuildError

_QUANTIZER = ".input_quantizer."
"""Part of the names of network inputs that quantize a linear layer's input, such as its scale."""


@dataclass(frozen=True)
class QuantizedMatmul:
    """Matmul or convolution with an 8-bit weight.

    Attributes:
        name: name of its layer.
        weight: name of the network input that is its weight.
        weights: dtype of the weight before dequantization, such as ``fp8``.
        inputs: dtype of the input before dequantization; high precision if it is not quantized.
        computes: True if it should run in 8 bits.
    """

    name: str
    weight: str
    weights: str
    inputs: str
    computes: bool

    def __post_init__(self) -> None:
        require_printable(self.name, self.weight, self.weights, self.inputs)


def quantized_matmuls(module: Any, definition: Any) -> list[QuantizedMatmul]:
    """Returns all matmuls and convolutions with 8-bit weights."""
    return _Edges(module, definition).products()


def qdq_nodes(module: Any, definition: Any) -> frozenset[str]:
    """Returns the ONNX nodes that are Q, DQ or scale the input of a Q."""
    return _Edges(module, definition).rounding()


def require_quantized(
    component: str, module: Any, definition: Any, expected: Mapping[str, bool]
) -> None:
    """Rejects a network whose quantized matmuls are not those expected.

    Args:
        component: its name.
        module: the product's module.
        definition: the parsed network.
        expected: the 8-bit weights by name; True for those with quantized inputs.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT`` with the component and the first difference.
    """
    matmuls = quantized_matmuls(module, definition)
    found = {matmul.weight: matmul.computes for matmul in matmuls}
    differ = [n for n in {**expected, **found} if expected.get(n) is not found.get(n)]
    if differ or len(found) != len(matmuls):
        first = differ[0] if differ else "a weight that several matmuls read"
        raise BuildError(
            "VIDC-QUANTIZE-COUNT",
            f"{component}: the recipe asks for {_counts(expected)}, the parsed network has "
            f"{_counts(found)}; the first difference is {first}",
            "report it with this message; a recipe that leaves the layer out builds",
        )


def _counts(weights: Mapping[str, bool]) -> str:
    return f"{len(weights)} weights and {sum(weights.values())} inputs of layers in 8 bits"


class _Edges:
    """Index of a network's layers by their inputs and outputs."""

    def __init__(self, module: Any, definition: Any) -> None:
        self._kinds = module.LayerType
        self._layers = [definition.get_layer(index) for index in range(definition.num_layers)]
        self._given = {
            layer.get_output(index).name: layer
            for layer in self._layers
            for index in range(layer.num_outputs)
        }
        self._views = (self._kinds.SHUFFLE, self._kinds.CAST, self._kinds.IDENTITY)

    def products(self) -> list[QuantizedMatmul]:
        """Returns the matmuls and convolutions whose 8-bit weight is an input of the network."""
        found = []
        kinds_of_products = (self._kinds.MATRIX_MULTIPLY, self._kinds.CONVOLUTION)
        for layer in self._layers:
            # A convolution whose weight is no tensor has one input.
            if layer.type not in kinds_of_products or layer.num_inputs == 1:
                continue
            of_weight = self._behind(layer.get_input(1), self._kinds.DEQUANTIZE)
            if of_weight is None:
                continue
            weight, steps = of_weight.get_input(0), self._steps(layer.get_input(0))
            inputs = layer.get_input(0) if steps is None else steps
            kinds = type_name(weight), type_name(inputs)
            name = self._source(weight) or weight.name
            found.append(QuantizedMatmul(layer.name, name, *kinds, steps is not None))
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
        return _QUANTIZER in (self._source(layer.get_input(1)) or "")

    def _steps(self, tensor: Any) -> Any:
        """Returns the quantized tensor that a DQ turns into ``tensor``, or None.

        A Q or a plugin must have made it.
        """
        after = self._behind(tensor, self._kinds.DEQUANTIZE)
        if after is None:
            return None
        kinds = (self._kinds.QUANTIZE, self._kinds.PLUGIN_V3)
        made = any(self._behind(after.get_input(0), kind) is not None for kind in kinds)
        return after.get_input(0) if made else None

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
