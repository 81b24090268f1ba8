"""One component's ExportedProgram with the Linears and rings of a recipe in 8 bits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from vidc.compiler.quantize.attention import QuantizedAttention, attention_types
from vidc.compiler.quantize.count import asked_linears, require_asked
from vidc.compiler.quantize.form import PROGRAM
from vidc.compiler.quantize.lowering import QuantizedLinear
from vidc.compiler.quantize.rings import (
    RingTensors,
    asked_rings,
    found_rings,
    require_rings,
    round_rings,
)
from vidc.compiler.quantize.stored_rings import store_rings
from vidc.compiler.quantize.tensors import TensorType, quantized_types
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint.write import Described
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.program import load_program, save_program, weight_names
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.quantized_linear import quantized_linear
from vidc.plugins.signature import Signature

_LINEAR = torch.ops.aten.linear.default
ARGUMENTS = 7
"""Of ``vidc::quantized_linear``, the tensors."""
_MULTIPLE = 16
"""Of channels, which products in 8 bits take."""


def write(
    exported: ExportedComponent,
    made: ExportedComponent,
    group: str,
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
    attentions: Mapping[str, QuantizedAttention],
) -> ExportedComponent:
    """``quantize_program`` of an exported component into the folder of ``made``.

    Returns:
        ``made`` with the states that its program has.
    """
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
    """Writes the quantized form of an exported program.

    Args:
        component: its name.
        source: the exported ``.pt2``.
        group: of its weights.
        weights: the tensors of the group's file in high precision.
        linears: all of the recipe's.
        path: of the file to write.
        attentions: all of the recipe's.
        signature: the component's.

    Returns:
        The signature with the states that are of 8 bits then.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, ``VIDC-QUANTIZE-COUNT``.
    """
    program = load_program(source)
    asked = quantize_linears(component, program, group, weights, linears)
    rings = asked_rings(program, signature, group, attentions)
    kept = quantize_rings(program, signature, group, rings, attentions)
    save_program(program, path)
    # What is counted is what was written, not what was meant to be.
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
        program: what ``export_program`` returns, perhaps with quantized Linears.
        signature: the component's.
        group: of its weights.
        rings: what ``asked_rings`` returned.
        attentions: all of the recipe's.

    Returns:
        The signature with the states that are of 8 bits then.
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
    """Quantizes a program in place; the arguments are those of ``quantize_program``.

    Returns:
        Those of the recipe's Linears that it has.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``.
    """
    asked = asked_linears(read_weights(program), group, linears, PROGRAM)
    types = quantized_types(weights, linears, PROGRAM)
    quantize(component, program, asked, {f"{group}.{name}": kind for name, kind in types.items()})
    return asked


def quantize(
    component: str,
    program: ExportedProgram,
    linears: Sequence[LinearTensors],
    types: Mapping[str, TensorType],
) -> None:
    """Makes these Linears of a program calls of ``vidc::quantized_linear``.

    Args:
        component: its name.
        program: what ``export_program`` returns; changed in place.
        linears: those whose weights it reads.
        types: of every weight after that, by name.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, the weight of one is not that of a Linear alone, no
            product takes its sizes, its input is centered and its bias not its own, or Linears that
            share an input's scale do not share the input.
    """
    weights = _Weights(program, types)
    # Those of Linears that other components have, too.
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
            raise _wrong(component, linear, f"is read by {read} instead of one Linear")
        sizes = types[linear.weight].shape
        if linear.computes and any(size % _MULTIPLE for size in sizes):
            raise _wrong(component, linear, f"is {list(sizes)}: no multiples of {_MULTIPLE}")
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
            # What is static stays as it was before there was any other.
            *([True] if linear.dynamic else []),
        )
        node.kwargs = {}
    program.graph_module.recompile()


def placeholders(
    program: ExportedProgram, types: Mapping[str, TensorType]
) -> Callable[[str], fx.Node]:
    """Gives the placeholder of a weight of a program, which it makes where there is none."""
    return _Weights(program, types).first


def read_weights(program: ExportedProgram) -> frozenset[str]:
    """The weights that a program reads; it has placeholders for all of its network's."""
    names = weight_names(program)
    placeholders = program.graph.find_nodes(op="placeholder")
    return frozenset(names[n.name] for n in placeholders if n.users and n.name in names)


def found_linears(program: ExportedProgram) -> list[LinearTensors]:
    """The quantized Linears of a program, by the tensors that its calls read."""
    names = weight_names(program)
    found = []
    for node in program.graph.find_nodes(op="call_function", target=quantized_linear):
        _, weight, scale, _, *of_input = node.args[:ARGUMENTS]
        read = [None if each is None else names[each.name] for each in of_input]
        tensors = LinearTensors(names[weight.name], names[scale.name], *read)
        found.append(replace(tensors, dynamic=is_dynamic(node)))
    return found


def is_dynamic(call: fx.Node) -> bool:
    """Whether a call of ``vidc::quantized_linear`` gives its input a scale for each token."""
    return len(call.args) > ARGUMENTS and bool(call.args[ARGUMENTS])


class _Weights:
    """A program's weights while it is quantized."""

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
        """The placeholder of a weight that the program has."""
        return self._placeholders[weight]

    def first(self, weight: str) -> fx.Node:
        """The placeholder of a weight, behind the program's first one where there is none yet."""
        return self.after(next(iter(self._placeholders.values())), weight)

    def retype(self, placeholder: fx.Node, weight: str) -> None:
        """Gives a weight the dtype that it has once it is quantized."""
        self._placeholders[weight] = placeholder
        kind = self.types[weight]
        with self._fake_mode:
            placeholder.meta["val"] = torch.empty(kind.shape, dtype=kind.dtype)
        values = torch.empty(kind.shape, dtype=kind.dtype)
        self.program.state_dict[weight] = nn.Parameter(values, requires_grad=False)

    def after_any(self, placeholder: fx.Node, weight: str | None) -> fx.Node | None:
        """As ``after``; None where there is no other weight."""
        return None if weight is None else self.after(placeholder, weight)

    def after(self, placeholder: fx.Node, weight: str) -> fx.Node:
        """The placeholder of another weight; behind this one where there is none yet."""
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
        f"{component}: {linear.weight} is to be in 8 bits, and {why}",
        "leave the layer out of the recipe",
    )
