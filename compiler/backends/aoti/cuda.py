"""Programs as AOTInductor compiles them for a GPU: lowered operators, channels-last weights."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from vidc.compiler.backends.aoti import (
    gelu_epilogues,
    group_norms,
    short_attention,
    state_writes,
    winograd,
)
from vidc.compiler.backends.aoti.convolution_forms import Choose, by_rule
from vidc.compiler.backends.aoti.fusion import NOTHING, Fusion, fuse
from vidc.compiler.backends.aoti.patches import convolutions, use_patches
from vidc.compiler.backends.aoti.phases import use_phases
from vidc.compiler.backends.aoti.scaled_matmuls import lower_linears
from vidc.compiler.backends.rings_8bit import lower_rings, pop_rounding
from vidc.exporters.lowering import expand, inline, open_stored, replace
from vidc.exporters.program import weight_names
from vidc.plugins.ops.flash_attention import flash_attention_sm90
from vidc.plugins.ops.padded_attention import padded_attention
from vidc.plugins.ops.padded_attention_sm90 import padded_attention_sm90
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope, qk_norm_rope_reference
from vidc.plugins.ops.ring import (
    ring_attention,
    ring_write,
    ring_write_of_bytes,
    single_query_attention,
)
from vidc.runtime.weights import CHANNELS_LAST

REWRITES: Mapping[str, Callable[[ExportedProgram], tuple[str, ...]]] = {
    group_norms.OPERATOR: group_norms.use_group_norms,
    short_attention.OPERATOR: short_attention.use_short_attention,
}
"""Rewrites of a graph that call a fused operator and can be left out, by the operator's name."""
WRITTEN_ONCE: Mapping[str, Any] = {
    # Inductor writes a value that several kernels read, instead of computing it in each of them.
    "realize_reads_threshold": 1,
}
"""Options of inductor for a program that calls ``group_norm_silu`` or has attention of single
queries, where two kernels would rotate queries and keys."""
_CONVOLUTIONS = (torch.ops.aten.conv2d.default, torch.ops.aten.conv3d.default)


@dataclass(frozen=True)
class CudaProgram:
    """Program for a GPU.

    Attributes:
        program: the lowered program.
        channels_last: names of the weights that it reads channels last.
        fusion: the fused operators that it calls.
        single_queries: True if it had ``ring_attention`` of single queries, which is inlined.
        epilogues: number of GELUs that its matmuls compute.
    """

    program: ExportedProgram
    channels_last: tuple[str, ...]
    fusion: Fusion
    single_queries: bool
    epilogues: int

    @property
    def inductor(self) -> Mapping[str, Any]:
        """Options of inductor for the program."""
        called = self.fusion.operators
        return {
            **(WRITTEN_ONCE if self.single_queries or group_norms.OPERATOR in called else {}),
            **(state_writes.INDUCTOR if winograd.OPERATOR in called else {}),
        }


def for_cuda(
    program: ExportedProgram,
    fused: bool,
    *,
    choose: Choose = by_rule,
    without: Collection[str] = (),
) -> CudaProgram:
    """Lowers a program for a Hopper GPU.

    Ring writes outside fused operators are inlined, so that inductor fuses them with the norm and
    rotation before. GELUs move into matmuls, whatever ``fused`` is. Convolution weights become
    channels last, so that inductor writes the input in cuDNN's layout; otherwise cuDNN transposes
    the input in every call. Filters that are computed from weights in every call have that layout
    too.

    Args:
        program: an exported program, perhaps quantized; changed in place.
        fused: True to call fused operators, whose kernels must be installed.
        choose: chooses the form of each convolution that has several.
        without: names of ``REWRITES``, or ``gelu_epilogues.NAME``, that are left out, to measure
            what they gain.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT``, ``VIDC-QUANTIZE-GRAPH``.
        UsageError: ``VIDC-KERNEL-ARGUMENT``, no kernel supports the sizes of an 8-bit ring.
    """
    attentions = program.graph.find_nodes(op="call_function", target=ring_attention)
    single_queries = any(map(_has_single_query, attentions))
    epilogues = 0 if gelu_epilogues.NAME in without else gelu_epilogues.use_epilogues(program)
    fusion = lower(program, fused)
    names = _convolved_weights(program)
    given = convolutions(program)
    use_phases(program, choose)
    called = winograd.use_winograd(program, fused, choose)
    for name, rewrite in REWRITES.items():
        if fused and name not in without:
            called += rewrite(program)
    use_patches(program, given, choose)
    fusion = dataclasses.replace(fusion, operators=tuple(sorted({*fusion.operators, *called})))
    replace(program, ring_attention, flash_attention_sm90)
    replace(program, padded_attention, padded_attention_sm90)
    program = move_to_device_pass(program, "cuda")
    for name in names:
        weight = program.state_dict[name]
        program.state_dict[name] = _channels_last(weight)
    return CudaProgram(program, names, fusion, single_queries, epilogues)


def lower(program: ExportedProgram, fused: bool) -> Fusion:
    """Lowers vidc's operators for a GPU, except 16-bit attention with several queries.

    The result runs on a CPU too.
    """
    states = pop_rounding(program)
    fusion = fuse(program) if fused else NOTHING
    called = lower_rings(program, states, fusion.left)
    operators = tuple(sorted({*fusion.operators, *called}))
    fusion = dataclasses.replace(fusion, operators=operators, products=lower_linears(program))
    expand(program, qk_norm_rope, qk_norm_rope_reference)
    expand(program, ring_attention, single_query_attention, _has_single_query)
    open_stored(program)
    inline(program, ring_write, ring_write_of_bytes)
    return fusion


def _has_single_query(attention: fx.Node) -> bool:
    """Returns True for a ``ring_attention`` with one query for each sample."""
    query = attention.args[0]
    assert isinstance(query, fx.Node)
    return bool(query.meta["val"].shape[1] == 1)


def _convolved_weights(program: ExportedProgram) -> tuple[str, ...]:
    weights = weight_names(program)
    kernels = [
        _unsqueezed(node.args[1]).name
        for target in _CONVOLUTIONS
        for node in program.graph.find_nodes(op="call_function", target=target)
    ]
    return tuple(sorted({weights[name] for name in kernels if name in weights}))


def _unsqueezed(node: fx.Node) -> fx.Node:
    """Returns the weight of a convolution before a ``squeeze``, if any.

    A 3D convolution whose kernel has a last axis of 1 runs as a 2D one, with that axis squeezed.
    """
    source: Any = node.args[0] if node.target is torch.ops.aten.squeeze.dim else node
    return source  # type: ignore[no-any-return]


def _channels_last(weight: Tensor) -> Tensor:
    values = weight.detach().contiguous(memory_format=CHANNELS_LAST[weight.dim()])
    return nn.Parameter(values, requires_grad=False) if isinstance(weight, nn.Parameter) else values
