"""A component's program as a build makes it for a backend, with the lines that it comes from."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from vidc.compiler.build.stages import quantized_formats
from vidc.compiler.config.resolve import Settings
from vidc.compiler.quantize import modules
from vidc.compiler.quantize.modules import quantized_components
from vidc.exporters.program import export_program
from vidc.plugins.ops import quantized_conv2d, quantized_linear
from vidc.plugins.signature import Signature

_TORCH = Path(torch.__file__).parent
_OPERATORS = tuple(
    Path(str(each.__file__)) for each in (modules, quantized_linear, quantized_conv2d)
)
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

    Exported graphs hold no lines, or a blank line in the model's source would change every engine.

    Args:
        settings: of the build.
        name: of the component.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``.
    """
    group = settings.model.components[name]
    part = settings.model.parts[group]
    network = part.network(settings.precision[group])
    if settings.quantized(group) is None:
        component = part.components(network)[name]
    else:
        component = quantized_components(part, quantized_formats(settings), network)[name]
    program = export_program(component, keep_sources=True)
    return ComponentProgram(name, program, component.signature, component.aligned)


def python_line(node: Node) -> str | None:
    """Returns the innermost line outside PyTorch and quantized modules that a node has kept."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not Path(frame[0]).is_relative_to(_TORCH)]
    own = [frame for frame in own if Path(frame[0]) not in _OPERATORS] or own
    return "{}:{}: {}".format(*own[-1]) if own else None
