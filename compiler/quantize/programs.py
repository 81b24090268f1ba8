"""Quantization of a component's ExportedProgram: linear layers and rings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from vidc.compiler.quantize.attention import QuantizedAttention, attention_types
from vidc.compiler.quantize.lowering import QuantizedLinear
from vidc.compiler.quantize.rings import (
    RingTensors,
    asked_rings,
    found_rings,
    require_rings,
    round_rings,
)
from vidc.compiler.quantize.stored_rings import store_rings
from vidc.compiler.quantize.support import AOTI_GPU
from vidc.compiler.quantize.tensors import TensorType, asked_linears, quantized_types, require_asked
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint.write import Described
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.program import load_program, save_program, weight_names
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.quantized_linear import quantized_linear
from vidc.plugins.signature import Signature

_LINEAR = torch.ops.aten.linear.default
ARGUMENTS = 7
"""Number of tensor arguments of ``vidc::quantized_linear``."""
_MULTIPLE = 16
"""Alignment of the channels of quantized matmuls."""


def write(
    exported: ExportedComponent,
    made: ExportedComponent,
    group: str,
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
    attentions: Mapping[str, QuantizedAttention],
) -> ExportedComponent:
    """Quantizes an exported component into the folder of ``made``; returns it with its states."""
    signature = quantize_program(
        exported.name, exported.program, group, weights, linears, made.program, attentions,
        exported.signature,
    )  # fmt: skip
    return replace(made, signature=signature)


def quantize_program(
    component: str,
    source: Path,
    group: str,
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
    path: Path,
    attentions: Mapping[str, QuantizedAttention],
    signature: Signature,
) -> Signature:
    """Quantizes an exported program to a file and checks the result.

    Args:
        component: the component's name.
        source: the exported ``.pt2``.
        group: its weights group.
        weights: the tensors of the group's file in high precision.
        linears: all quantized linear layers of the recipe.
        path: the file to write.
        attentions: all quantized self-attentions of the recipe.
        signature: the component's signature.

    Returns:
        The signature with the 8-bit states.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, ``VIDC-QUANTIZE-COUNT``.
    """
    program = load_program(source)
    asked = quantize_linears(component, program, group, weights, linears)
    rings = asked_rings(program, signature, group, attentions)
    kept = quantize_rings(program, signature, group, rings, attentions)
    save_program(program, path)
    # The check reads the written file.
    written = load_program(path)
    require_asked(component, asked, found_linears(written))
    require_rings(component, rings, found_rings(written, kept))
    return kept


def quantize_rings(
    program: ExportedProgram,
    signature: Signature,
    group: str,
    rings: Mapping[str, RingTensors],
    attentions: Mapping[str, QuantizedAttention],
) -> Signature:
    """Quantizes a program's rings in place.

    Args:
        program: an exported program, perhaps with quantized linear layers.
        signature: the component's signature.
        group: its weights group.
        rings: result of ``asked_rings``.
        attentions: all quantized self-attentions of the recipe.

    Returns:
        The signature with the 8-bit states.
    """
    types = {f"{group}.{name}": kind for name, kind in attention_types(attentions).items()}
    placeholder = placeholders(program, types)
    round_rings(program, signature, rings, placeholder)
    return store_rings(program, signature, rings, placeholder)


def quantize_linears(
    component: str,
    program: ExportedProgram,
    group: str,
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
) -> list[LinearTensors]:
    """Quantizes a program's linear layers in place; arguments as of ``quantize_program``.

    Returns:
        The tensors of its quantized linear layers.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``.
    """
    asked = asked_linears(read_weights(program), group, linears, AOTI_GPU)
    types = quantized_types(weights, linears, AOTI_GPU)
    quantize(component, program, asked, {f"{group}.{name}": kind for name, kind in types.items()})
    return asked


def quantize(
    component: str,
    program: ExportedProgram,
    linears: Sequence[LinearTensors],
    types: Mapping[str, TensorType],
) -> None:
    """Replaces linear layers of a program by ``vidc::quantized_linear``.

    Args:
        component: the component's name.
        program: an exported program; changed in place.
        linears: the tensors of its quantized linear layers.
        types: types of all quantized weights, by name.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, a weight has another user than one linear layer, its
            sizes are unsupported, a centered layer has no bias of its own, or layers with a common
            input scale read different inputs.
    """
    weights = _Weights(program, types)
    # Includes the weights of linear layers that only other components read.
    for name in weight_names(program).values():
        if name in types and program.state_dict[name].dtype != types[name].dtype:
            weights.retype(weights.placeholder(name), name)
    inputs: dict[str, fx.Node] = {}
    for linear in linears:
        placeholder = weights.placeholder(linear.weight)
        users = tuple(placeholder.users)
        node = users[0] if len(users) == 1 else None
        if node is None or node.target is not _LINEAR or node.args[1] is not placeholder:
            read = ", ".join(sorted(str(user.target) for user in users)) or "nothing"
            raise _wrong(component, linear, f"is read by {read} instead of one linear layer")
        sizes = types[linear.weight].shape
        if linear.computes and any(size % _MULTIPLE for size in sizes):
            raise _wrong(component, linear, f"has shape {list(sizes)}: no multiples of {_MULTIPLE}")
        given: Any = node.args[0]
        known = (
            given if linear.input_scale is None else inputs.setdefault(linear.input_scale, given)
        )
        if known is not given:
            raise _wrong(
                component,
                linear,
                f"shares {linear.input_scale} with others, but reads {given} where these read "
                f"{known}",
            )
        bias: Any = node.args[2] if len(node.args) > 2 else None
        if linear.input_mean is not None and (bias is None or len(bias.users) != 1):
            raise _wrong(component, linear, "has no bias of its own for its input's mean")
        node.target = quantized_linear
        node.args = (
            given,
            placeholder,
            weights.after(placeholder, linear.weight_scale),
            bias,
            weights.after_any(placeholder, linear.input_scale),
            weights.after_any(placeholder, linear.input_factor),
            weights.after_any(placeholder, linear.input_mean),
            # Omitted for static scales.
            *([True] if linear.dynamic else []),
        )
        node.kwargs = {}
    program.graph_module.recompile()


def placeholders(
    program: ExportedProgram, types: Mapping[str, TensorType]
) -> Callable[[str], fx.Node]:
    """Returns a function that returns the placeholder of a weight, and adds it if necessary."""
    return _Weights(program, types).first


def read_weights(program: ExportedProgram) -> frozenset[str]:
    """Returns the weights that a program uses; it has placeholders for all of its network's."""
    names = weight_names(program)
    placeholders = program.graph.find_nodes(op="placeholder")
    return frozenset(names[n.name] for n in placeholders if n.users and n.name in names)


def found_linears(program: ExportedProgram) -> list[LinearTensors]:
    """Returns the tensors of a program's quantized linear layers."""
    names = weight_names(program)
    found = []
    for node in program.graph.find_nodes(op="call_function", target=quantized_linear):
        _, weight, scale, _, *of_input = node.args[:ARGUMENTS]
        read = [None if each is None else names[each.name] for each in of_input]
        tensors = LinearTensors(names[weight.name], names[scale.name], *read)
        found.append(replace(tensors, dynamic=is_dynamic(node)))
    return found


def is_dynamic(call: fx.Node) -> bool:
    """Returns True if a call of ``vidc::quantized_linear`` has per-token scales."""
    return len(call.args) > ARGUMENTS and bool(call.args[ARGUMENTS])


class _Weights:
    """Placeholders of a program's weights."""

    def __init__(self, program: ExportedProgram, types: Mapping[str, TensorType]) -> None:
        self.program = program
        self.types = types
        graph = program.graph
        nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
        self._placeholders: dict[str, fx.Node] = {
            weight: nodes[name] for name, weight in weight_names(program).items()
        }
        self._fake_mode = next(iter(nodes.values())).meta["val"].fake_mode

    def placeholder(self, weight: str) -> fx.Node:
        """Returns the placeholder of an existing weight."""
        return self._placeholders[weight]

    def first(self, weight: str) -> fx.Node:
        """Returns the placeholder of a weight; adds it after the program's first if necessary."""
        return self.after(next(iter(self._placeholders.values())), weight)

    def retype(self, placeholder: fx.Node, weight: str) -> None:
        """Gives a weight its quantized type."""
        self._placeholders[weight] = placeholder
        kind = self.types[weight]
        with self._fake_mode:
            placeholder.meta["val"] = torch.empty(kind.shape, dtype=kind.dtype)
        values = torch.empty(kind.shape, dtype=kind.dtype)
        self.program.state_dict[weight] = nn.Parameter(values, requires_grad=False)

    def after_any(self, placeholder: fx.Node, weight: str | None) -> fx.Node | None:
        """Returns ``after``, or None for no weight."""
        return None if weight is None else self.after(placeholder, weight)

    def after(self, placeholder: fx.Node, weight: str) -> fx.Node:
        """Returns the placeholder of another weight; adds it after this one if necessary."""
        if weight in self._placeholders:
            return self._placeholders[weight]
        graph, specs = self.program.graph, self.program.graph_signature.input_specs
        with graph.inserting_after(placeholder):
            made: fx.Node = graph.placeholder(f"p_{weight.replace('.', '_')}")
        self.retype(made, weight)
        before = next(i for i, spec in enumerate(specs) if spec.arg.name == placeholder.name)
        argument = TensorArgument(name=made.name)
        specs.insert(before + 1, InputSpec(InputKind.PARAMETER, argument, weight))
        return made


def _wrong(component: str, linear: LinearTensors, why: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTIZE-GRAPH",
        f"{component}: {linear.weight} cannot be quantized: it {why}",
        "leave the layer out of the recipe",
    )
