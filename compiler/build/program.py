"""A component's program as a build makes it for a backend, with the lines that it comes from."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from vidc.compiler.backends import backend
from vidc.compiler.config.resolve import Settings
from vidc.compiler.quantize.attention import quantized_attention
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.compiler.quantize.programs import quantize_linears, quantize_rings
from vidc.compiler.quantize.rings import asked_rings
from vidc.compiler.quantize.support import ONNX
from vidc.exporters.program import export_program
from vidc.plugins.signature import Signature

_TORCH = Path(torch.__file__).parent
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')


@dataclass(frozen=True)
class ComponentProgram:
    """A component's program as a backend compiles it.

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
    """Exports a component once more, quantized as its backend takes it.

    Linears that are to be in 8 bits in a graph of ONNX are left as they are: that is done to the
    graph. Exported graphs hold no lines, or a blank line in the model's source would change every
    engine.

    Args:
        settings: of the build.
        name: of the component.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``.
    """
    group = settings.model.components[name]
    precision = settings.precision[group]
    network = settings.model.parts[group].network(precision)
    component = settings.model.parts[group].components(network)[name]
    program, signature = export_program(component, keep_sources=True), component.signature
    form = backend(settings.backend).quantization(settings.target)
    quantized = settings.quantized(group)
    if quantized is not None:
        if form != ONNX:
            linears = quantized_linears(quantized.recipe, settings.model, form)
            quantize_linears(name, program, group, network.state_dict(), linears)
        attentions = quantized_attention(quantized.recipe, settings.model, form)
        rings = asked_rings(program, signature, group, attentions)
        signature = quantize_rings(program, signature, group, rings, attentions)
    return ComponentProgram(name, program, signature, component.aligned)


def python_line(node: Node) -> str | None:
    """The innermost line outside PyTorch that a node has kept of its sources."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not Path(frame[0]).is_relative_to(_TORCH)]
    return "{}:{}: {}".format(*own[-1]) if own else None
