"""Fusion passes that replace operations by vidc's fused operators.

An opaque operator keeps inductor from fusing across it, so measurements decide which ones are used
(``docs/evidence/kernels.md``): the ring write, which inductor splits into three kernels, and GELU
between two matmuls where the first one cannot compute it. Gate, residual, norm and modulation have
no operator, because inductor makes one kernel of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.export import ExportedProgram

from vidc.compiler.backends.aoti.gelu_epilogues import can_be_epilogue
from vidc.compiler.backends.fused_calls import (
    RingWrite,
    call_gelus,
    gelus,
    to_stored,
    without_queries,
)
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope


@dataclass(frozen=True)
class Fusion:
    """Result of ``fuse``.

    Attributes:
        operators: names of the fused operators that the program calls.
        packed: names of packed weights, with those of the weights concatenated along axis 0.
        left: reasons why candidates were not fused, a line each.
        products: names of scales that are products, with those of their factors.
    """

    operators: tuple[str, ...]
    packed: Mapping[str, tuple[str, ...]]
    left: tuple[str, ...]
    products: Mapping[str, tuple[str, str]] = field(default_factory=dict)


NOTHING = Fusion((), {}, ())
"""Result for a program without fused operators."""


def fusable(program: ExportedProgram) -> tuple[str, ...]:
    """Returns the operators that ``fuse`` calls if kernels support all sizes.

    GELUs that become a matmul's epilogue do not count: they need no kernel of vidc's.
    """
    found = {
        "qk_norm_rope_ring_write": [
            node
            for node in program.graph.find_nodes(op="call_function", target=qk_norm_rope)
            if not without_queries(node)
        ],
        "gelu_quantize": [node for node in gelus(program.graph) if not can_be_epilogue(node)],
    }
    return tuple(sorted(name for name, nodes in found.items() if nodes))


def fuse(program: ExportedProgram) -> Fusion:
    """Replaces operations of a program by fused operators.

    The three projections of each self-attention become one matmul with packed weights, whose result
    ``qk_norm_rope_ring_write`` takes, if all three have the same format. GELUs that are not in a
    matmul's epilogue become ``gelu_quantize``. Calls with sizes that no kernel supports are left
    unfused.

    Args:
        program: an exported program; changed in place.

    Raises:
        ValueError: a ``qk_norm_rope`` is not between projections and ring writes.
    """
    packed: dict[str, tuple[str, ...]] = {}
    operators: set[str] = set()
    left: dict[str, None] = {}
    calls = program.graph.find_nodes(op="call_function", target=qk_norm_rope)
    # Without queries, inductor makes one kernel of norm, rotation and write.
    calls = [node for node in calls if not without_queries(node)]
    if any(to_stored(node) for node in calls):
        left["8-bit rings with high-precision queries are written by inductor's kernels"] = None
    calls = [node for node in calls if not to_stored(node)]
    for call in [RingWrite(program, node) for node in calls]:
        if call.apart is not None:
            left[call.apart] = None
            continue
        try:
            packed |= call.fuse()
            operators.add("qk_norm_rope_ring_write")
        except UsageError as error:
            left[error.message] = None
    left |= dict.fromkeys(call_gelus(program))
    if program.graph.find_nodes(op="call_function", target=gelu_quantize):
        operators.add("gelu_quantize")
    program.graph_module.recompile()
    return Fusion(tuple(sorted(operators)), packed, tuple(left))
