"""Copies of a component's program with more outputs, or of a part of it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import fx
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from vidc.compiler.build.program import ComponentProgram
from vidc.exporters.program import argument_placeholders, result_names
from vidc.plugins.signature import DTYPE_NAMES, Access, Role, Signature, TensorSpec, state_output

_CALLS = ("call_function", "get_attr")


def value_name(node: str) -> str:
    """Returns the name of a node's value as an added input or output.

    It has a dot, as no node's name has.
    """
    return f"value.{node}"


def result_nodes(made: ComponentProgram) -> dict[str, fx.Node]:
    """Returns a program's output nodes by the names of ``Signature.graph_outputs``."""
    signature = made.signature
    names = (
        name if signature[name].role is Role.OUTPUT else state_output(name)
        for name in result_names(made.program, signature)
    )
    (nodes,) = made.program.graph.output_node().args
    return dict(zip(names, nodes, strict=True))


def with_outputs(made: ComponentProgram, nodes: Sequence[str]) -> ComponentProgram:
    """Returns a copy of a program with these values as additional outputs.

    Args:
        made: program of the component; unchanged.
        nodes: names of nodes, whose values become outputs called ``value_name``.
    """
    graph, specs = _copied(made.program.graph), made.program.graph_signature
    by_name = {node.name: node for node in graph.nodes}
    output = graph.output_node()
    output.args = ((*_returned(output), *(by_name[name] for name in nodes)),)
    outputs = [*_outputs(specs.output_specs), *map(_user_output, nodes)]
    added = [_spec(by_name[name], Role.OUTPUT) for name in nodes]
    program = _program(made.program, graph, _inputs(specs.input_specs), outputs)
    signature = replace(made.signature, tensors=(*made.signature.tensors, *added))
    return replace(made, program=program, signature=signature)


def part_of(made: ComponentProgram, given: Iterable[str], wanted: str) -> ComponentProgram:
    """Returns a copy of the part of a program between some values and one result.

    The part keeps those of the component's inputs, states and weights that it reads. It still
    writes each state that is written on the way to the result.

    Args:
        made: program of the component; unchanged.
        given: names of nodes, whose values become inputs called ``value_name``.
        wanted: name of the node whose value is computed: an output called ``value_name``, unless
            it is a state's new value.
    """
    graph, old = _copied(made.program.graph), made.program.graph_signature
    by_name = {node.name: node for node in graph.nodes}
    states = {
        spec.arg.name: spec
        for spec in old.output_specs
        if spec.kind is OutputKind.USER_INPUT_MUTATION
    }
    added = [_spec(by_name[name], Role.INPUT) for name in given]
    inputs = [*_inputs(old.input_specs), *_replaced(graph, [by_name[name] for name in given])]
    alive = _before(by_name[wanted])
    written = [spec for name, spec in states.items() if by_name[name] in alive]
    returned = [by_name[spec.arg.name] for spec in written]
    outputs = _outputs(written)
    if wanted not in states:
        returned.append(by_name[wanted])
        outputs.append(_user_output(wanted))
        added.append(_spec(by_name[wanted], Role.OUTPUT))
    graph.output_node().args = (tuple(returned),)
    for node in reversed(graph.nodes):
        if not node.users and (node.op in _CALLS or node.op == "placeholder"):
            graph.erase_node(node)
    kept = {node.name for node in graph.find_nodes(op="placeholder")}
    inputs = [spec for spec in inputs if spec.arg.name in kept]
    placeholders = zip(made.signature.arguments, argument_placeholders(made.program), strict=True)
    names = {placeholder.name: spec.name for spec, placeholder in placeholders}
    signature = _narrowed(
        made.signature,
        {names[name] for name in kept if name in names},
        {names[str(spec.target)] for spec in written},
        added,
    )
    return replace(
        made, program=_program(made.program, graph, inputs, outputs), signature=signature
    )


def _narrowed(
    signature: Signature, kept: set[str], written: set[str], added: Sequence[TensorSpec]
) -> Signature:
    """Restricts a signature to the arguments in ``kept`` and adds tensors.

    States that are not in ``written`` become read-only.
    """
    tensors = []
    for spec in signature.arguments:
        if spec.name not in kept:
            continue
        reads = spec.access is not None and spec.name not in written
        tensors.append(replace(spec, access=Access.READ) if reads else spec)
    return replace(signature, tensors=(*tensors, *added))


def _replaced(graph: fx.Graph, nodes: Sequence[fx.Node]) -> list[InputSpec]:
    """Replaces these nodes by inputs."""
    made = []
    *_, last = graph.find_nodes(op="placeholder")
    for node in nodes:
        with graph.inserting_after(last):
            last = graph.placeholder(f"given_{node.name}")
        last.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(last)
        made.append(InputSpec(InputKind.USER_INPUT, TensorArgument(name=last.name), None))
    return made


def _before(node: fx.Node) -> set[fx.Node]:
    """Returns a node and all its ancestors."""
    found, todo = set[fx.Node](), [node]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += each.all_input_nodes
    return found


def _program(
    source: ExportedProgram,
    graph: fx.Graph,
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
) -> ExportedProgram:
    """Builds a program of this graph; raises torch's SpecViolationError if they do not fit."""
    arguments = sum(spec.kind is InputKind.USER_INPUT for spec in inputs)
    results = sum(spec.kind is OutputKind.USER_OUTPUT for spec in outputs)
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure((tuple(range(arguments)), {})),
        out_spec=pytree.tree_structure(tuple(range(results))),
    )
    targets = {spec.target for spec in inputs}
    return ExportedProgram(
        root=source.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature([*inputs], [*outputs]),
        state_dict={n: tensor for n, tensor in source.state_dict.items() if n in targets},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", call)],
        constants={n: value for n, value in source.constants.items() if n in targets},
        verifiers=source.verifiers,
    )


def _copied(graph: fx.Graph) -> fx.Graph:
    """Copies a graph with the same node names."""
    copy, nodes = fx.Graph(), dict[fx.Node, fx.Node]()
    returned = copy.graph_copy(graph, nodes)
    copy.output(returned)
    copy.output_node().meta.update(graph.output_node().meta)
    return copy


def _returned(output: fx.Node) -> tuple[fx.Node, ...]:
    (nodes,) = output.args
    return tuple(nodes)  # type: ignore[arg-type]  # a program returns a tuple of nodes


def _inputs(specs: Iterable[InputSpec]) -> list[InputSpec]:
    return [replace(spec) for spec in specs]


def _outputs(specs: Iterable[OutputSpec]) -> list[OutputSpec]:
    return [replace(spec) for spec in specs]


def _user_output(node: str) -> OutputSpec:
    return OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node), None)


def _spec(node: fx.Node, role: Role) -> TensorSpec:
    value = node.meta["val"]
    return TensorSpec(value_name(node.name), tuple(value.shape), DTYPE_NAMES[value.dtype], role)
