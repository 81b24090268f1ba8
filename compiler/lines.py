"""Adds to a backend's complaint about a graph the line of Python that it is about."""

from collections.abc import Iterator
from contextlib import contextmanager

from vidc.compiler.backends import GraphError, backend
from vidc.compiler.quantise.form import GRAPH
from vidc.compiler.quantise.lowering import quantized_linears
from vidc.compiler.settings.resolve import Settings
from vidc.exporters.components import component_groups
from vidc.plugins.errors import BuildError


@contextmanager
def naming_lines(settings: Settings) -> Iterator[None]:
    """Names the line in an error of the block, where it is known.

    Exported graphs hold no lines, or a blank line in the model's source would change every engine:
    the component is exported once more, with them.

    Raises:
        BuildError: a GraphError's code and message, with the line behind it.
    """
    try:
        yield
    except GraphError as error:
        line = _line(error, settings)
        where = "" if line is None else f"; it comes from {line}"
        raise BuildError(error.code, f"{error.message}{where}", error.hint) from error


def _line(error: GraphError, settings: Settings) -> str | None:
    from torch.fx.traceback import preserve_node_meta

    from vidc.compiler.bisect.reference import python_line
    from vidc.compiler.quantise.programs import quantize_linears
    from vidc.exporters.models import components, meta_network
    from vidc.exporters.onnx.export import translated_program
    from vidc.exporters.onnx.native_ring import native_form
    from vidc.exporters.program import export_program

    group = component_groups(settings.model)[error.component]
    precision = settings.precision[group]
    network = meta_network(settings.model, group, precision)
    component = components(settings.model, group, network, precision)[error.component]
    program = export_program(component, keep_sources=True)
    form = backend(settings.backend).form(settings.target)
    quantized = settings.quantized(group)
    if quantized is not None and form != GRAPH:
        # Values of a quantised program have other numbers.
        linears = quantized_linears(quantized.recipe, settings.model, form)
        quantize_linears(error.component, program, group, network.state_dict(), linears)
    signature = component.signature
    if settings.backend == "torch_tensorrt":
        from vidc.compiler.torch_tensorrt.convert import given_program

        with preserve_node_meta():
            translated, _, signature = given_program(program, signature, component.aligned)
    elif settings.target.is_gpu:
        signature, operators = native_form(program, signature, component.aligned)
        translated, _ = translated_program(program, signature, operators)
    else:
        translated, _ = translated_program(program, signature, {})  # The portable graph.
    # Results go by the names of the signature, as in the graph.
    (results,) = translated.graph.output_node().args
    nodes = {node.name: node for node in translated.graph.nodes}
    nodes |= dict(zip(signature.graph_outputs(), results, strict=True))
    lines = (python_line(nodes[value]) for value in error.values if value in nodes)
    return next((line for line in lines if line is not None), None)
