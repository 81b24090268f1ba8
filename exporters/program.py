"""Export of a component to an ExportedProgram, and its file without weights."""

import copy
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

# These imports register the operators that programs call.
import vidc.plugins.ops.fake_quantize
import vidc.plugins.ops.quantize_kv
import vidc.plugins.ops.ring  # noqa: F401
from vidc.exporters.component import Component
from vidc.exporters.tracing import tracing
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d
from vidc.plugins.ops.quantized_linear import quantized_linear
from vidc.plugins.signature import Access, Signature

LINEAR_TENSORS = 7
"""Number of tensor arguments of ``vidc::quantized_linear``."""
_DEBUG_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


def export_program(component: Component, keep_sources: bool = False) -> ExportedProgram:
    """Traces a component on the CPU without allocating weights or states.

    The program is functional: a written state is an input that its signature lists as mutated.
    Operators of namespace ``vidc`` are opaque. The program has no source locations, so equal
    components give equal programs.

    Args:
        component: its module may be on the meta device, or on the CPU with any values.
        keep_sources: keeps the source lines of each node.

    Raises:
        ValueError: the module's arguments, outputs, states or weights differ from the component's.
    """
    module = _on_cpu(component.module)
    arguments = tuple(
        torch.empty(spec.shape, dtype=spec.torch_dtype) for spec in component.signature.arguments
    )
    with tracing():
        traced = torch.export.export(module, arguments, strict=False)
        # Only the functional form shows aliases of states.
        program: ExportedProgram = traced.run_decompositions({})
    drop_assertions(program)
    if not keep_sources:
        _drop_sources(program)
    _check(component, program)
    return program


def save_program(program: ExportedProgram, path: Path) -> None:
    """Writes a program without weight values and without pickled inputs.

    The same program gives the same bytes.
    """
    weights, inputs = dict(program.state_dict), program.example_inputs
    buffer = io.BytesIO()  # With a path, the archive contains its name.
    try:
        program.state_dict.update(_without_values(weights))
        program.example_inputs = None
        with tracing():
            torch.export.save(program, buffer)
    finally:
        program.state_dict.update(weights)
        program.example_inputs = inputs
    path.write_bytes(buffer.getvalue())


def load_program(path: Path) -> ExportedProgram:
    """Reads a file of ``save_program``; operators of namespace ``vidc`` must be imported.

    Weights and example inputs are uninitialized CPU tensors, which take no memory until written.
    Loading unpickles the archive's pickles: refuse untrusted files with pickles first.
    """
    with tracing():
        program = torch.export.load(path)
    for name, weight in program.state_dict.items():
        empty = torch.empty(weight.shape, dtype=weight.dtype)
        program.state_dict[name] = _like(weight, empty)
    inputs = [placeholder.meta["val"] for placeholder in argument_placeholders(program)]
    program.example_inputs = (tuple(torch.empty(i.shape, dtype=i.dtype) for i in inputs), {})
    return program


def weight_names(program: ExportedProgram) -> dict[str, str]:
    """Returns the names of weights by their placeholders' names."""
    return {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.target in program.state_dict
    }


def quantized_weights(program: ExportedProgram) -> dict[str, bool]:
    """Returns the 8-bit weights of linear layers and convolutions; True if inputs are quantized."""
    names, found = weight_names(program), {}
    for operator in (quantized_linear, quantized_conv2d):
        for call in program.graph.find_nodes(op="call_function", target=operator):
            _, weight, _, _, scale, *_ = call.args
            found[names[weight.name]] = scale is not None or is_dynamic(call)
    return found


def is_dynamic(call: Any) -> bool:
    """Returns True if a call of ``vidc::quantized_linear`` has per-token scales."""
    return len(call.args) > LINEAR_TENSORS and bool(call.args[LINEAR_TENSORS])


def argument_placeholders(program: ExportedProgram) -> tuple[torch.fx.Node, ...]:
    """Returns the placeholders of the component's arguments, in the signature's order."""
    names = program.graph_signature.user_inputs
    return tuple(node for node in program.graph.find_nodes(op="placeholder") if node.name in names)


def result_names(program: ExportedProgram, signature: Signature) -> tuple[str, ...]:
    """Returns the name of the output or state of each result of the graph."""
    arguments = dict(zip(program.graph_signature.user_inputs, signature.arguments, strict=True))
    outputs = iter(signature.outputs)
    return tuple(
        arguments[spec.target].name
        if spec.kind is OutputKind.USER_INPUT_MUTATION
        else next(outputs).name
        for spec in program.graph_signature.output_specs
    )


def _on_cpu(module: nn.Module) -> nn.Module:
    """Returns the module, or a copy with uninitialized CPU tensors for meta tensors."""
    if not any(tensor.is_meta for tensor in module.state_dict().values()):
        return module
    copied = copy.deepcopy(module)
    copied._apply(lambda t: torch.empty_like(t, device="cpu") if t.is_meta else t)
    return copied


def drop_assertions(program: ExportedProgram) -> None:
    """Removes assertions that tie the program to this device."""
    for node in program.graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        program.graph.erase_node(node)
    program.graph_module.recompile()


def _drop_sources(program: ExportedProgram) -> None:
    """Removes source locations."""
    for node in program.graph.nodes:
        for key in _DEBUG_META:
            node.meta.pop(key, None)


def _like(weight: Tensor, values: Tensor) -> Tensor:
    if isinstance(weight, nn.Parameter):
        return nn.Parameter(values, requires_grad=weight.requires_grad)
    return values


def _without_values(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors of these shapes and dtypes that share one zero per dtype."""
    zeros = {w.dtype: torch.zeros((), dtype=w.dtype) for w in weights.values()}
    return {name: _like(w, zeros[w.dtype].expand(w.shape)) for name, w in weights.items()}


def _check(component: Component, program: ExportedProgram) -> None:
    """Refuses a program that does not match its component's signature."""
    signature, graph = component.signature, program.graph_signature

    def require(what: str, found: object, declared: object) -> None:
        if found != declared:
            raise ValueError(
                f"{component.name}: {what} of the graph: {found}, of the component: {declared}"
            )

    weights = set(component.module.state_dict())
    require("weights", set(program.state_dict), weights)
    require("weights outside a file", {name for name in weights if "." not in name}, set())
    require("number of arguments", len(graph.user_inputs), len(signature.arguments))
    require("number of outputs", len(graph.user_outputs), len(signature.outputs))
    require("written buffers", set(graph.buffers_to_mutate.values()), set())
    results = zip(
        result_names(program, signature), program.graph.output_node().args[0], strict=True
    )
    require(
        "results",
        {name: (tuple(node.meta["val"].shape), node.meta["val"].dtype) for name, node in results},
        {t.name: (t.shape, t.torch_dtype) for t in signature if t.writes},
    )
    placeholders = zip(signature.arguments, argument_placeholders(program), strict=True)
    reads = {spec.name for spec, placeholder in placeholders if _is_read(placeholder)}
    overwritten = {state.name for state in signature.states if state.access is Access.WRITE}
    require("reads of overwritten states", reads & overwritten, set())


def _is_read(placeholder: torch.fx.Node) -> bool:
    """Returns True if a placeholder's values are read; a copy's target gives only its shape."""
    return any(
        user.target is not torch.ops.aten.copy.default or user.args[1] is placeholder
        for user in placeholder.users
    )
