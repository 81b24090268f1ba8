"""Quantization of an ONNX graph: standard Q/DQ around its linear layers.

A linear layer is a Gemm with its weight as stored. A DequantizeLinear reads the 8-bit weight. If
the input is quantized too, QuantizeLinear and DequantizeLinear precede the Gemm and an Add of the
bias follows. ONNX Runtime matches this pattern, explicit zero points included, for its integer
matmul.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from vidc.exporters.linear_tensors import LinearTensors
from vidc.plugins.errors import BuildError

_INTEGERS = (ir.DataType.INT8,)
_CHANNELS = 0
"""The axis of a weight's output channels."""


def quantize(
    model: ir.Model, gemms: Sequence[LinearTensors], tensors: Mapping[str, ir.ExternalTensor]
) -> None:
    """Quantizes linear layers of a graph, in place.

    Args:
        model: a graph with weights as initializers.
        gemms: the layers to quantize; each weight is in the graph.
        tensors: the quantized graph's initializers of weights, by name.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, a weight is not read by exactly one Gemm, a layer with
            a centered input has no bias of its own, or layers share an input scale but not the
            input.
    """
    graph = _Graph(model, tensors)
    by_weight = {gemm.weight: gemm for gemm in gemms}
    for weight in _read_in_order(model, by_weight):
        graph.quantize(by_weight.pop(weight))
    for gemm in by_weight.values():
        graph.quantize(gemm)  # Read by nothing, which is told.
    graph.refer()


def found_gemms(model: ir.Model, others: Collection[ir.Node] = ()) -> list[LinearTensors]:
    """Returns the quantized linear layers of a graph, found from its edges as a parser does.

    Args:
        model: the graph.
        others: Q and DQ nodes that belong to something else.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, a Q or DQ belongs to no linear layer.
    """
    found, seen = [], set(others)
    for node in model.graph:
        if node.op_type != "Gemm":
            continue
        weight = _producer(node, 1, "DequantizeLinear")
        if weight is None:
            continue
        seen.add(weight)
        scale = factor = mean = None
        dequantized = _producer(node, 0, "DequantizeLinear")
        if dequantized is not None:
            quantized = _producer(dequantized, 0, "QuantizeLinear")
            if quantized is None or _names(quantized, 1, 2) != _names(dequantized, 1, 2):
                raise _wrong(model, node, "its input is dequantized otherwise than it is quantized")
            seen |= {dequantized, quantized}
            (scale,) = _names(quantized, 1)
            factor, before = _by_weight(quantized, "Mul")
            mean, _ = _by_weight(before, "Sub")
        values, weight_scale = _names(weight, 0, 1)
        found.append(LinearTensors(values, weight_scale, scale, factor, mean))
    for node in model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node not in seen:
            raise _wrong(model, node, "it belongs to no quantized Linear")
    return found


def unsigned_inputs(model: ir.Model) -> bool:
    """Makes INT8 inputs UINT8 with zero point 128, in place; returns True if there are any.

    Values stay the same. On x86, ONNX Runtime multiplies unsigned inputs by signed weights ten
    times as fast as signed inputs, and converts by itself only an input with one reader.
    """
    found = False
    for node in model.graph:
        quantizes = node.op_type == "QuantizeLinear" and len(node.inputs) > 2
        zero = node.inputs[2] if quantizes else None
        if zero is None or zero.dtype != ir.DataType.INT8:
            continue
        found = True
        zero.const_value = ir.Tensor(np.array(128, np.uint8), name=zero.name)
        for value in (zero, node.outputs[0]):
            value.dtype = ir.DataType.UINT8
    return found


class _Graph:
    """A graph during quantization."""

    def __init__(self, model: ir.Model, tensors: Mapping[str, ir.ExternalTensor]) -> None:
        self._model = model
        self._tensors = tensors
        self._initializers = model.graph.initializers
        self._inputs: dict[str, tuple[ir.Value, ir.Value]] = {}

    def quantize(self, gemm: LinearTensors) -> None:
        """Quantizes one linear layer."""
        weight = self._initializers[gemm.weight]
        node = self._only_gemm(weight)
        if gemm.input_mean is not None:
            self._require_own_bias(node, gemm)
        self._retype(weight)
        scale = self._initializer(gemm.weight_scale)
        # ONNX Runtime treats FP8 with a zero point as integers and then has no kernel.
        zero = (
            [self._zero(f"{gemm.weight}_zero", weight.dtype, tuple(scale.shape))]
            if weight.dtype in _INTEGERS
            else []
        )
        before = [
            ir.node(
                "DequantizeLinear",
                [weight, scale, *zero],
                {"axis": _CHANNELS},
                name=f"{gemm.weight}.dequantize",
                outputs=[self._value(f"{gemm.weight}.dequantized", node.inputs[0], weight.shape)],
            )
        ]
        node.replace_input_with(1, before[0].outputs[0])
        self._model.graph.insert_before(node, before)
        if gemm.input_scale is None:
            return
        node.replace_input_with(0, self._quantized_input(node, weight.dtype, gemm))
        self._add_bias_behind(node)

    def refer(self) -> None:
        """Points every weight into its file and drops unused weights."""
        for name, value in [*self._initializers.items()]:
            if not value.uses():
                del self._initializers[name]
            elif name in self._tensors:
                value.const_value = self._tensors[name]

    def _only_gemm(self, weight: ir.Value) -> ir.Node:
        uses = tuple(weight.uses())
        node = uses[0].node if len(uses) == 1 else None
        if (
            node is None
            or node.op_type != "Gemm"
            or uses[0].idx != 1
            or node.attributes.get_int("transB", 0) != 1
            or node.attributes.get_int("transA", 0) != 0
            or node.attributes.get_float("alpha", 1.0) != 1.0
            or node.attributes.get_float("beta", 1.0) != 1.0
        ):
            users = ", ".join(sorted({use.node.op_type for use in uses})) or "nothing"
            raise BuildError(
                "VIDC-QUANTIZE-GRAPH",
                f"{self._model.graph.name}: {weight.name} is to be in 8 bits, and is read by "
                f"{users} instead of one Gemm",
                "leave the layer out of the recipe",
            )
        return node

    def _require_own_bias(self, node: ir.Node, gemm: LinearTensors) -> None:
        """Refuses a bias that cannot compensate for the input's mean."""
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is None or not bias.is_initializer() or len(bias.uses()) != 1:
            raise BuildError(
                "VIDC-QUANTIZE-GRAPH",
                f"{self._model.graph.name}: {gemm.weight} has no bias of its own for its input's "
                "mean",
                "leave center out of the recipe's rule for this layer",
            )

    def _quantized_input(self, gemm: ir.Node, dtype: ir.DataType, names: LinearTensors) -> ir.Value:
        """Returns the input after Q/DQ, shared by layers with the same scale."""
        source = gemm.inputs[0]
        assert source is not None
        assert names.input_scale is not None
        if names.input_scale in self._inputs:
            known, quantized = self._inputs[names.input_scale]
            if known is not source:
                raise BuildError(
                    "VIDC-QUANTIZE-GRAPH",
                    f"{self._model.graph.name}: {names.weight} shares {names.input_scale} with "
                    f"others, but reads {source.name} where these read {known.name}",
                    "report it with this message",
                )
            return quantized
        stem, values, nodes = names.input_scale.removesuffix("_scale"), source, []
        for operation, name, result in (
            ("Sub", names.input_mean, "centered"),
            ("Mul", names.input_factor, "smoothed"),
        ):
            if name is not None:
                made = self._value(f"{stem}.{result}", source, source.shape)
                nodes.append(ir.node(operation, [values, self._initializer(name)], outputs=[made]))
                values = made
        scale, zero = self._initializer(names.input_scale), self._zero(f"{stem}_zero", dtype, ())
        steps = ir.Value(name=f"{stem}.quantized", shape=source.shape, type=ir.TensorType(dtype))
        after = self._value(f"{stem}.dequantized", source, source.shape)
        nodes.append(ir.node("QuantizeLinear", [values, scale, zero], outputs=[steps]))
        nodes.append(ir.node("DequantizeLinear", [steps, scale, zero], outputs=[after]))
        for node in nodes:
            node.name = f"{stem}.{node.op_type}"
        self._model.graph.insert_before(gemm, nodes)
        self._inputs[names.input_scale] = source, after
        return after

    def _add_bias_behind(self, gemm: ir.Node) -> None:
        """Moves the bias of a Gemm to an Add: a float bias would prevent the integer matmul."""
        if len(gemm.inputs) < 3 or gemm.inputs[2] is None:
            return
        bias, output = gemm.inputs[2], gemm.outputs[0]
        product = self._value(f"{output.name}.product", output, output.shape)
        attributes = {"transB": 1}
        plain = ir.node("Gemm", gemm.inputs[:2], attributes, outputs=[product], name=gemm.name)
        total = self._value(f"{output.name}.biased", output, output.shape)
        add = ir.node("Add", [product, bias], outputs=[total], name=f"{gemm.name}.bias")
        self._model.graph.insert_after(gemm, [plain, add])
        output.replace_all_uses_with(total, replace_graph_outputs=True)
        name = output.name
        self._model.graph.remove(gemm, safe=True)
        total.name = name

    def _retype(self, weight: ir.Value) -> None:
        weight.const_value = self._tensors[weight.name]
        weight.dtype = weight.const_value.dtype

    def _initializer(self, name: str) -> ir.Value:
        """Returns a scale or factor, registered at first use."""
        if name not in self._initializers:
            tensor = self._tensors[name]
            value = ir.Value(
                name=name,
                shape=tensor.shape,
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
            self._model.graph.register_initializer(value)
        return self._initializers[name]

    def _zero(self, name: str, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
        """Returns a new zero point; ONNX Runtime may rewrite it, so it is not shared."""
        tensor = ir.Tensor(np.zeros(shape, dtype.numpy()), dtype=dtype, name=name)
        value = ir.Value(
            name=name, shape=tensor.shape, type=ir.TensorType(dtype), const_value=tensor
        )
        self._model.graph.register_initializer(value)
        return value

    def _value(self, name: str, like: ir.Value | None, shape: ir.Shape | None) -> ir.Value:
        """Returns a new high-precision value."""
        assert like is not None
        assert like.dtype is not None
        return ir.Value(name=name, shape=shape, type=ir.TensorType(like.dtype))


def _read_in_order(model: ir.Model, weights: Mapping[str, LinearTensors]) -> list[str]:
    """Returns the weights in the order of the nodes that read them, each once."""
    read = (value.name for node in model.graph for value in node.inputs if value is not None)
    return [name for name in dict.fromkeys(read) if name in weights]


def _producer(node: ir.Node, position: int, op_type: str) -> ir.Node | None:
    value = node.inputs[position]
    producer = None if value is None else value.producer()
    return producer if producer is not None and producer.op_type == op_type else None


def _by_weight(node: ir.Node, op_type: str) -> tuple[str | None, ir.Node]:
    """Returns the initializer and the node of an ``op_type`` before a node's first input.

    Without such an operation, returns None and ``node``.
    """
    before = _producer(node, 0, op_type)
    operand = None if before is None else before.inputs[1]
    if before is None or operand is None or not operand.is_initializer():
        return None, node
    return operand.name, before


def _names(node: ir.Node, *positions: int) -> list[str]:
    return [node.inputs[position].name for position in positions]


def _wrong(model: ir.Model, node: ir.Node, why: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTIZE-GRAPH",
        f"{model.graph.name}: {node.op_type} {node.name!r}: {why}",
        "report it with this message",
    )
