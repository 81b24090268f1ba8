"""CPU convolutions whose implementation does not depend on the number of threads."""

import torch
from torch.export import ExportedProgram
from torch.fx import Node

aten = torch.ops.aten
_KINDS = (aten.conv2d.default, aten.conv3d.default)
_WEIGHT, _DILATION = 1, 5
"""Indices of the arguments."""


def bind_implementations(program: ExportedProgram) -> None:
    """Dilates convolutions with a kernel of height and width 1, which does not change results.

    Without a dilation, PyTorch runs some of them in oneDNN if there are several threads and in a
    kernel of its own if there is one. The two differ in output layout, and compiled code assumes
    the layout of the machine that compiled it. With a dilation, the choice depends on sizes alone.

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
