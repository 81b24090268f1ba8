"""The Linears of a parsed network that are in 8 bits, found by the network's own edges."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vidc.compiler.backends.tensorrt.engine_layers import nodes_of
from vidc.compiler.quantize.count import require_asked
from vidc.compiler.quantize.tensors import input_factor_name, input_mean_name, input_scale_name
from vidc.exporters.linear_tensors import LinearTensors
from vidc.plugins.errors import BuildError

_OF_INPUTS = (input_scale_name(""), input_factor_name(""), input_mean_name(""))


@dataclass(frozen=True)
class QuantizedProduct:
    """A matrix product whose weight is in 8 bits.

    Attributes:
        name: of its layer.
        tensors: which the Linear reads, by the names of the network's inputs.
        weights: the type of the weight before it is dequantized, such as ``fp8``.
        inputs: that of the input before it is, which is the product's own where it never was.
    """

    name: str
    tensors: LinearTensors
    weights: str
    inputs: str

    @property
    def computes(self) -> bool:
        """Whether it is meant to be computed in 8 bits."""
        return self.tensors.input_scale is not None


def quantized_products(module: Any, definition: Any) -> list[QuantizedProduct]:
    """Every product whose weight is in 8 bits, and what it is scaled by."""
    return _Edges(module, definition).products()


def rounding_nodes(module: Any, definition: Any) -> frozenset[str]:
    """The nodes of ONNX that are Q, DQ or nothing but what these take to scale their inputs."""
    return _Edges(module, definition).rounding()


def require_quantized(
    component: str, module: Any, definition: Any, asked: tuple[LinearTensors, ...]
) -> None:
    """Refuses a network whose Linears in 8 bits, or whose pairs of Q and DQ, are not as asked.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT`` with the component and the first difference.
    """
    found = quantized_products(module, definition)
    require_asked(component, asked, [product.tensors for product in found])
    kinds = [definition.get_layer(index).type for index in range(definition.num_layers)]
    inputs = {linear.input_scale for linear in asked} - {None}
    # Linears that share an input's scale share its pair, too.
    wanted = (len(inputs), len(inputs) + len(asked))
    there = tuple(kinds.count(k) for k in (module.LayerType.QUANTIZE, module.LayerType.DEQUANTIZE))
    if there != wanted:
        raise BuildError(
            "VIDC-QUANTIZE-COUNT",
            f"{component}: the recipe takes {wanted[0]} Q and {wanted[1]} DQ, the parsed network "
            f"has {there[0]} and {there[1]}",
            "report it with this message; a recipe that leaves the layer out builds",
        )


class _Edges:
    """A network's layers by the tensors that they give and take."""

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

    def products(self) -> list[QuantizedProduct]:
        """Those with a weight that comes from an input of the network, in 8 bits."""
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
            found.append(
                QuantizedProduct(layer.name, tensors, type_name(weight), type_name(inputs))
            )
        return found

    def rounding(self) -> frozenset[str]:
        """The nodes that each Q and DQ is, and those that bring it to scale or are views."""
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
                # A power of two follows the scale; before that, a constant is the network's own.
                elif before.type not in self._views and (scaled or not self._by_constant(before)):
                    break
                found.update(nodes_of(before.metadata))
                before = self._given.get(before.get_input(0).name)
        return frozenset(found)

    def _by_constant(self, layer: Any) -> bool:
        """Whether a layer computes with a constant."""
        if layer.type != self._kinds.ELEMENTWISE:
            return False
        given = self._given.get(layer.get_input(1).name)
        while given is not None and given.num_inputs == 1:
            given = self._given.get(given.get_input(0).name)
        return given is not None and given.type == self._kinds.CONSTANT

    def _scales(self, layer: Any) -> bool:
        """Whether a layer computes with a scale, factor or mean of a quantized input."""
        if layer.type != self._kinds.ELEMENTWISE:
            return False
        name = self._source(layer.get_input(1)) or ""
        return name.endswith(_OF_INPUTS)

    def _quantized(self, tensor: Any) -> tuple[Any, str | None, str | None, str | None]:
        """An input before its DQ; the names of its scale, factor and mean. None for what is not."""
        after = self._behind(tensor, self._kinds.DEQUANTIZE)
        before = None if after is None else self._behind(after.get_input(0), self._kinds.QUANTIZE)
        if after is None or before is None:
            return None, None, None, None
        scale = factor = mean = None
        for operation, name in self._operations(before.get_input(0)):
            if scale is None and operation == self._module.ElementWiseOperation.DIV:
                scale = name
            elif scale is not None:
                # Before that, whatever the network computes may be multiplied or less something.
                if name is not None and name.endswith(input_factor_name("")) and factor is None:
                    factor = name
                    continue
                mean = name if name is not None and name.endswith(input_mean_name("")) else None
                break
        return after.get_input(0), scale, factor, mean

    def _scale(self, product: Any) -> str:
        """The network's input that a product is multiplied with, or nothing."""
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
        """Operations on two operands that give a tensor, the last first; the second's input."""
        layer = self._given.get(tensor.name)
        while layer is not None and layer.type == self._kinds.ELEMENTWISE:
            # The binding returns the base class.
            layer.__class__ = self._module.IElementWiseLayer
            yield layer.op, self._source(layer.get_input(1))
            layer = self._given.get(layer.get_input(0).name)

    def _source(self, tensor: Any) -> str | None:
        """The network's input that a tensor is a view of."""
        while (layer := self._given.get(tensor.name)) is not None:
            if layer.type not in self._views:
                return None
            tensor = layer.get_input(0)
        name: str = tensor.name
        return name

    def _behind(self, tensor: Any, kind: Any) -> Any:
        """The layer of a kind that gives a tensor, or a view of it."""
        layer = self._given.get(tensor.name)
        while layer is not None and layer.type in self._views:
            layer = self._given.get(layer.get_input(0).name)
        return layer if layer is not None and layer.type == kind else None


def type_name(tensor: Any) -> str:
    """A tensor's type, as descriptions of networks call it."""
    return str(tensor.dtype).rpartition(".")[2].lower()
