"""Export of a component to an ExportedProgram, and its file: a graph without weights."""

import copy
import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

# These register the operators that programs call.
import vidc.plugins.ops.fake_quantize
import vidc.plugins.ops.quantize_kv
import vidc.plugins.ops.quantized_linear
import vidc.plugins.ops.ring  # noqa: F401
from vidc.exporters.component import Component
from vidc.exporters.tracing import tracing
from vidc.plugins.signature import Access, Signature

_DEBUG_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


def export_program(component: Component, keep_sources: bool = False) -> ExportedProgram:
    """Traces a component on the CPU without touching memory for its weights or states.

    The program is functional inside: a state that the component writes is an input that its
    signature lists as mutated, and operators of namespace ``vidc`` are opaque. It keeps no trace
    of the sources it was made from, so equal components give equal programs.

    Args:
        component: its module may live on the meta device, or on the CPU with any values.
        keep_sources: leaves in each node the lines that it comes from.

    Raises:
        ValueError: the module's arguments, outputs, states or weights are not those that the
            component declares.
    """
    module = _on_cpu(component.module)
    arguments = tuple(
        torch.empty(spec.shape, dtype=spec.torch_dtype) for spec in component.signature.arguments
    )
    with tracing():
        traced = torch.export.export(module, arguments, strict=False)
        # Aliases of states appear only in the functional form.
        program: ExportedProgram = traced.run_decompositions({})
    _drop_assertions(program)
    if not keep_sources:
        _drop_sources(program)
    _check(component, program)
    return program


def save_program(program: ExportedProgram, path: Path) -> None:
    """Writes a program without the values of its weights and without pickled inputs.

    The same program gives the same bytes.
    """
    weights, inputs = dict(program.state_dict), program.example_inputs
    buffer = io.BytesIO()  # A path would leave its name in the archive.
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
    """Reads what ``save_program`` wrote; operators of namespace ``vidc`` must be imported.

    Its weights and example inputs are uninitialized CPU tensors, which take no memory until
    something writes them. Loading unpickles what the archive pickles: refuse files from elsewhere
    that hold pickles first.
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
    """Names of the graph's placeholders for weights, with the names of the weights."""
    return {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.target in program.state_dict
    }


def argument_placeholders(program: ExportedProgram) -> tuple[torch.fx.Node, ...]:
    """The placeholders of the component's arguments, in the order of its signature."""
    names = program.graph_signature.user_inputs
    return tuple(node for node in program.graph.find_nodes(op="placeholder") if node.name in names)


def result_names(program: ExportedProgram, signature: Signature) -> tuple[str, ...]:
    """For each result of the graph, the output or the state whose new value it is."""
    arguments = dict(zip(program.graph_signature.user_inputs, signature.arguments, strict=True))
    outputs = iter(signature.outputs)
    return tuple(
        arguments[spec.target].name
        if spec.kind is OutputKind.USER_INPUT_MUTATION
        else next(outputs).name
        for spec in program.graph_signature.output_specs
    )


def _on_cpu(module: nn.Module) -> nn.Module:
    """The module, or a copy whose meta tensors are uninitialized ones on the CPU."""
    if not any(tensor.is_meta for tensor in module.state_dict().values()):
        return module
    copied = copy.deepcopy(module)
    copied._apply(lambda t: torch.empty_like(t, device="cpu") if t.is_meta else t)
    return copied


def _drop_assertions(program: ExportedProgram) -> None:
    """Removes what pins the program to this device."""
    for node in program.graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        program.graph.erase_node(node)
    program.graph_module.recompile()


def _drop_sources(program: ExportedProgram) -> None:
    """Removes what names the files that the program was made from."""
    for node in program.graph.nodes:
        for key in _DEBUG_META:
            node.meta.pop(key, None)


def _like(weight: Tensor, values: Tensor) -> Tensor:
    if isinstance(weight, nn.Parameter):
        return nn.Parameter(values, requires_grad=weight.requires_grad)
    return values


def _without_values(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of these shapes and dtypes that hold one zero for each dtype."""
    zeros = {w.dtype: torch.zeros(1, dtype=w.dtype) for w in weights.values()}
    return {name: _like(w, zeros[w.dtype].expand(w.shape)) for name, w in weights.items()}


def _check(component: Component, program: ExportedProgram) -> None:
    """Refuses a program that does not do what its component's signature says."""
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
    """Whether a placeholder's values matter: the target of a copy lends its shape and dtype."""
    return any(
        user.target is not torch.ops.aten.copy.default or user.args[1] is placeholder
        for user in placeholder.users
    )
