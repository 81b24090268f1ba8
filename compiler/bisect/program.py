"""A component's program as a build makes it for a backend, with the lines that it comes from."""

from dataclasses import dataclass

from torch.export import ExportedProgram

from vidc.compiler.backends import backend
from vidc.compiler.quantise.attention import quantized_attention
from vidc.compiler.quantise.form import GRAPH
from vidc.compiler.quantise.lowering import quantized_linears
from vidc.compiler.quantise.programs import quantize_linears, quantize_rings
from vidc.compiler.quantise.rings import asked_rings
from vidc.compiler.settings.resolve import Settings
from vidc.exporters.components import component_groups
from vidc.exporters.models import components, meta_network
from vidc.exporters.program import export_program
from vidc.plugins.signature import Signature


@dataclass(frozen=True)
class ComponentProgram:
    """What a backend compiles of a component.

    Attributes:
        name: the component's.
        program: without values of its weights; nodes have the lines of Python they come from.
        signature: with the states that the program has.
        aligned: the component's.
    """

    name: str
    program: ExportedProgram
    signature: Signature
    aligned: bool


def component_program(settings: Settings, name: str) -> ComponentProgram:
    """Exports a component once more, quantised as its backend takes it.

    Linears that are to be in 8 bits in a graph of ONNX are left as they are: that is done to the
    graph. Exported graphs hold no lines, or a blank line in the model's source would change every
    engine.

    Args:
        settings: of the build.
        name: of the component.

    Raises:
        BuildError: ``VIDC-QUANTISE-GRAPH``.
    """
    group = component_groups(settings.model)[name]
    precision = settings.precision[group]
    network = meta_network(settings.model, group, precision)
    component = components(settings.model, group, network, precision)[name]
    program, signature = export_program(component, keep_sources=True), component.signature
    form = backend(settings.backend).form(settings.target)
    quantized = settings.quantized(group)
    if quantized is not None:
        if form != GRAPH:
            linears = quantized_linears(quantized.recipe, settings.model, form)
            quantize_linears(name, program, group, network.state_dict(), linears)
        attentions = quantized_attention(quantized.recipe, settings.model, form)
        rings = asked_rings(program, signature, group, attentions)
        signature = quantize_rings(program, signature, group, rings, attentions)
    return ComponentProgram(name, program, signature, component.aligned)
