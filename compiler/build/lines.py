"""Adds the line of the model's Python source to a backend's error about a graph."""

from collections.abc import Iterator
from contextlib import contextmanager

from vidc.compiler.backends import GraphError
from vidc.compiler.config.resolve import Settings
from vidc.plugins.errors import BuildError


@contextmanager
def naming_lines(settings: Settings) -> Iterator[None]:
    """Adds the line, if known, to an error that the block raises.

    Exported graphs have no line numbers, so the component is exported once more with them.

    Raises:
        BuildError: with the GraphError's code, and its message followed by the line.
    """
    try:
        yield
    except GraphError as error:
        line = _line(error, settings)
        where = "" if line is None else f"; it comes from {line}"
        raise BuildError(error.code, f"{error.message}{where}", error.hint) from error


def _line(error: GraphError, settings: Settings) -> str | None:
    from torch.fx.traceback import preserve_node_meta

    from vidc.compiler.backends import CompileOptions
    from vidc.compiler.backends.native_graph import ring_form
    from vidc.compiler.backends.plugin_calls import PORTABLE
    from vidc.compiler.backends.tensorrt.compatible import compatible
    from vidc.compiler.backends.tensorrt.plugins import choose_plugins
    from vidc.compiler.backends.tensorrt.product import convolution_form, product_for
    from vidc.compiler.build.program import component_program, python_line
    from vidc.exporters.onnx.export import translated_program
    from vidc.exporters.onnx.functional import Operators
    from vidc.exporters.onnx.quantized import ONNXRUNTIME

    made = component_program(settings, error.component)
    signature = made.signature
    if settings.backend == "torch_tensorrt":
        from vidc.compiler.backends.torch_tensorrt.convert import functional_form

        with preserve_node_meta():
            translated, _, signature = functional_form(made.program, signature, made.aligned)
    elif settings.target.is_gpu:
        product = product_for(settings.target) if settings.backend == "tensorrt" else None
        use = PORTABLE
        form: Operators = {}
        if product is not None:
            asked = settings.tensorrt
            options = CompileOptions(
                version_compatible=asked.version_compatible, plugins=asked.plugins
            )
            use = choose_plugins(made.name, signature, made.aligned, product, options)
            capabilities = compatible(settings).capabilities
            form = convolution_form(product, settings.target, capabilities)
        signature, operators, _ = ring_form(made.program, signature, made.aligned, use)
        translated, _ = translated_program(made.program, signature, {**operators, **form})
    else:
        translated, _ = translated_program(
            made.program, signature, ONNXRUNTIME
        )  # The portable graph.
    # In a backend's graph, outputs have the names of the signature, not those of the nodes.
    (results,) = translated.graph.output_node().args
    nodes = {node.name: node for node in translated.graph.nodes}
    nodes |= dict(zip(signature.graph_outputs(), results, strict=True))
    lines = (python_line(nodes[value]) for value in error.values if value in nodes)
    return next((line for line in lines if line is not None), None)
