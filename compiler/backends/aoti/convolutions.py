"""Convolutions on a CPU, by one of PyTorch's implementations whatever the number of threads."""

import torch
from torch.export import ExportedProgram
from torch.fx import Node

aten = torch.ops.aten
_KINDS = (aten.conv2d.default, aten.conv3d.default)
_WEIGHT, _DILATION = 1, 5
"""Their places among arguments."""


def bind_implementations(program: ExportedProgram) -> None:
    """Dilates convolutions whose kernel is 1 wide and 1 high, which changes no result.

    Without a dilation, PyTorch gives some to oneDNN where there are several threads and to a kernel
    of its own where there is one. What they write is laid out differently, and compiled code counts
    on the layout where it was compiled: elsewhere it reads numbers in the wrong order. With one,
    sizes alone decide.

    Args:
        program: changed in place.
    """
    for node in program.graph.nodes:
        if node.target in _KINDS and _is_pointwise(node):
            sides = node.meta["val"].dim() - 2
            dilation = [1] * (sides - 1) + [2]
            if len(node.args) > _DILATION:
                node.update_arg(_DILATION, dilation)
            else:
                node.update_kwarg("dilation", dilation)


def _is_pointwise(node: Node) -> bool:
    weight = node.args[_WEIGHT]
    assert isinstance(weight, Node)
    height, width = weight.meta["val"].shape[-2:]
    return bool(height == width == 1)
