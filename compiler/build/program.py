"""A component's program as a backend compiles it, with the Python lines of its nodes."""

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
        name: name of the component.
        program: the program, without values of weights; its nodes keep their Python lines.
        signature: the component's tensors.
        aligned: as ``Component.aligned``.
    """

    name: str
    program: ExportedProgram
    signature: Signature
    aligned: bool


def component_program(settings: Settings, name: str) -> ComponentProgram:
    """Exports a component once more, quantized as its backend takes it.

    The graphs of stage ``export`` have no line numbers, so that a blank line in the model's source
    does not change every graph and make a build compile every engine again.

    Args:
        settings: settings of the build.
        name: name of the component.

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
    """Returns a node's innermost line outside PyTorch and, if possible, quantized modules.

    Returns None if the node has no stack trace of such a line.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not Path(frame[0]).is_relative_to(_TORCH)]
    own = [frame for frame in own if Path(frame[0]) not in _OPERATORS] or own
    return "{}:{}: {}".format(*own[-1]) if own else None
