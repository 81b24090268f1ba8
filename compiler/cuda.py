"""What AOTInductor is given for a GPU: own operators lowered, convolutions channels last."""

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from vidc.exporters.lowering import inline, replace
from vidc.exporters.program import weight_names
from vidc.plugins.flash_attention import flash_attention_sm90
from vidc.plugins.ring import ring_attention, ring_write, ring_write_functional
from vidc.runtime.weights import CHANNELS_LAST

_CONVOLUTIONS = (torch.ops.aten.conv2d.default, torch.ops.aten.conv3d.default)


def for_cuda(program: ExportedProgram) -> tuple[ExportedProgram, tuple[str, ...]]:
    """A program for a Hopper GPU, and the weights that it reads channels last.

    Ring writes are opened up, so that they fuse with the norm and rotation before them. The
    layout of a convolution follows its weight's: with these channels last, inductor writes the
    convolution's input as cuDNN wants it, where cuDNN would transpose it on every call.

    Args:
        program: what ``export_program`` returns; changed in place.
    """
    inline(program, ring_write, ring_write_functional)
    replace(program, ring_attention, flash_attention_sm90)
    program = move_to_device_pass(program, "cuda")
    names = _convolved_weights(program)
    for name in names:
        weight = program.state_dict[name]
        program.state_dict[name] = _channels_last(weight)
    return program, names


def _convolved_weights(program: ExportedProgram) -> tuple[str, ...]:
    weights = weight_names(program)
    kernels = [
        node.args[1].name
        for target in _CONVOLUTIONS
        for node in program.graph.find_nodes(op="call_function", target=target)
    ]
    return tuple(sorted({weights[name] for name in kernels if name in weights}))


def _channels_last(weight: Tensor) -> Tensor:
    values = weight.detach().contiguous(memory_format=CHANNELS_LAST[weight.dim()])
    return nn.Parameter(values, requires_grad=False) if isinstance(weight, nn.Parameter) else values
