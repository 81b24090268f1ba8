"""GELU in the epilogue of the matmul before it.

On its own, GELU reads and writes the widest tensor of a layer once more: on an H100, that is 54 us
of a pass through a layer of LongLive in bf16. In the epilogue it is 12 us
(``docs/evidence/longlive.md``): cuBLAS computes the tanh approximation on the matmul's float32 sums
before it rounds them.
"""

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from vidc.compiler.backends.fused_calls import gelus
from vidc.exporters.lowering import insert

NAME = "gelu_epilogues"
"""Name for ``without`` of ``for_cuda``."""
aten = torch.ops.aten
_16_BIT = (torch.bfloat16, torch.float16)


def use_epilogues(program: ExportedProgram) -> int:
    """Moves GELUs of 16-bit linear layers, in place, into their matmuls; returns their number.

    A layer needs a bias, and nothing else may read its result. On a CPU PyTorch computes GELU by
    the error function instead, which differs by at most 5e-4.
    """
    found = [node for node in gelus(program.graph) if can_be_epilogue(node)]
    for node in found:
        with program.graph.inserting_before(node):
            node.replace_all_uses_with(insert(program.graph, _linear_gelu, node.args[0].args))
        program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return len(found)


def can_be_epilogue(gelu: fx.Node) -> bool:
    """Returns True if a GELU follows a 16-bit linear layer with a bias that nothing else reads.

    The layer's input must have a dimension beside its features.
    """
    source: Any = gelu.args[0]
    biased = source.target is aten.linear.default and len(source.args) == 3
    if not biased or len(source.users) > 1:
        return False
    value = source.meta["val"]
    return value.dim() > 1 and value.dtype in _16_BIT


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = x.flatten(0, -2)
    result: Any = aten._addmm_activation.default(bias, rows, weight.t(), use_gelu=True)
    return result.unflatten(0, x.shape[:-1])  # type: ignore[no-any-return]
