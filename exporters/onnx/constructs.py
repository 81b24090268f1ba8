"""ONNX constructs that parsers ignore or refuse, one entry each.

Measured with TensorRT-RTX 1.7.1 and ONNX Runtime 1.31 and 1.32 on a CPU. TensorRT shares the parser
of TensorRT-RTX, so it has the same entries for parsing. ONNX Runtime on a GPU has the entries for
rules of the graph, and those for missing CUDA kernels. Constructs that only older versions refuse
stay in the table, since such a version may load a bundle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from vidc.exporters.onnx import rounding

Parser = Literal["tensorrt", "tensorrt_rtx", "onnxruntime", "onnxruntime_cuda"]
"""``onnxruntime`` is ONNX Runtime on a CPU."""

_TENSORRT: tuple[Parser, ...] = ("tensorrt", "tensorrt_rtx")
_ONNXRUNTIME: tuple[Parser, ...] = ("onnxruntime", "onnxruntime_cuda")
_QUERY, _KEY, _MASK, _NONPAD_KV_SEQLEN = 0, 1, 3, 6
"""Input positions of Attention."""
_WIDEST_FUSED_HEAD = 256


@dataclass(frozen=True)
class Construct:
    """A graph construct that some parsers do not implement as specified.

    Attributes:
        code: its name.
        parsers: the parsers that ignore or refuse it.
        reason: what these parsers do.
        remedy: the alternative to export.
        matches: returns True if a node is, or may be, an instance.
    """

    code: str
    parsers: tuple[Parser, ...]
    reason: str
    remedy: str
    matches: Callable[[ir.Node], bool]


def _standard(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in ("", "ai.onnx")


def _attention_in(node: ir.Node, dtype: ir.DataType) -> bool:
    query = rounding.input_at(node, _QUERY)
    return _standard(node, "Attention") and query is not None and query.dtype in (dtype, None)


def _length(node: ir.Node, position: int) -> int | ir.SymbolicDim | None:
    """Returns the sequence length of an input of Attention, None if unknown."""
    value = rounding.input_at(node, position)
    return None if value is None or value.shape is None else value.shape[-2]


def _has_padded_keys(node: ir.Node) -> bool:
    return _standard(node, "Attention") and rounding.input_at(node, _NONPAD_KV_SEQLEN) is not None


def _has_window(node: ir.Node) -> bool:
    sizes = ("left_window_size", "right_window_size")
    return _standard(node, "Attention") and any(node.attributes.get_int(s, -1) >= 0 for s in sizes)


def _is_causal_rectangle(node: ir.Node) -> bool:
    return (
        _standard(node, "Attention")
        and node.attributes.get_int("is_causal", 0) == 1
        and (_length(node, _QUERY) is None or _length(node, _QUERY) != _length(node, _KEY))
    )


def _is_undecomposed_f32(node: ir.Node) -> bool:
    return (
        _attention_in(node, ir.DataType.FLOAT)
        and node.attributes.get_int("TRT_decomposable", 0) == 0
    )


def _is_undecomposed_wide(node: ir.Node) -> bool:
    query = rounding.input_at(node, _QUERY)
    if not _standard(node, "Attention") or query is None or query.shape is None:
        return False
    # A three-axis shape does not show the head size.
    width = query.shape[-1] if len(query.shape) == 4 else None
    return (
        isinstance(width, int)
        and width > _WIDEST_FUSED_HEAD
        and node.attributes.get_int("TRT_decomposable", 0) == 0
    )


def _broadcasts_mask_to_queries(node: ir.Node) -> bool:
    return (
        _standard(node, "Attention")
        and rounding.input_at(node, _MASK) is not None
        and (_length(node, _MASK) is None or _length(node, _MASK) != _length(node, _QUERY))
    )


def _is_marked_decomposable(node: ir.Node) -> bool:
    return _standard(node, "Attention") and "TRT_decomposable" in node.attributes


def _is_circular_scatter(node: ir.Node) -> bool:
    return (
        _standard(node, "TensorScatter")
        and node.attributes.get_string("mode", "linear") == "circular"
    )


def _pads_bfloat16(node: ir.Node) -> bool:
    """Returns True if a node pads bfloat16."""
    data = rounding.input_at(node, 0)
    return _standard(node, "Pad") and data is not None and data.dtype == ir.DataType.BFLOAT16


def _is_custom(node: ir.Node) -> bool:
    return node.domain not in ("", "ai.onnx")


PADDED_KEYS = Construct(
    "attention-padded-keys",
    _TENSORRT,
    "nonpad_kv_seqlen is ignored: every slot is attended to",
    "mask the slots with attn_mask, or set key_value_lengths on the parsed layer",
    _has_padded_keys,
)
CUSTOM_OPERATOR = Construct(
    "custom-operator-plugin",
    _TENSORRT,
    "an operator outside the standard needs a plugin, and this network calls none",
    "export the portable form",
    _is_custom,
)
UNFUSED = (
    Construct(
        "attention-f32",
        ("tensorrt_rtx",),
        "float32 attention parses and then fails to build",
        "use fp16 or bf16, or let the parsed layer be decomposed",
        _is_undecomposed_f32,
    ),
    Construct(
        "attention-wide-head",
        ("tensorrt_rtx",),
        f"no fused kernel takes heads wider than {_WIDEST_FUSED_HEAD}",
        "let the parsed layer be decomposed, or set attribute TRT_decomposable = 1",
        _is_undecomposed_wide,
    ),
)
"""Attention that builds only if TensorRT may decompose it."""
CONSTRUCTS = (
    PADDED_KEYS,
    Construct(
        "attention-window-ignored",
        _TENSORRT,
        "left_window_size and right_window_size are ignored: every slot is attended to",
        "mask the slots with attn_mask",
        _has_window,
    ),
    Construct(
        "attention-window-refused",
        _ONNXRUNTIME,
        "left_window_size and right_window_size are unknown attributes before version 1.32",
        "mask the slots with attn_mask",
        _has_window,
    ),
    Construct(
        "attention-causal-rectangle",
        _TENSORRT,
        "is_causal counts from the first key, not from the last, where queries and keys differ "
        "in number",
        "mask the keys with attn_mask",
        _is_causal_rectangle,
    ),
    *UNFUSED,
    Construct(
        "attention-decomposable",
        _ONNXRUNTIME,
        "TRT_decomposable is an unknown attribute",
        "set it in the TensorRT backend, on a copy of the graph",
        _is_marked_decomposable,
    ),
    Construct(
        "attention-bf16",
        ("onnxruntime",),
        "a CPU has no kernel for bfloat16 attention",
        "export in fp32 or fp16",
        lambda node: _attention_in(node, ir.DataType.BFLOAT16),
    ),
    Construct(
        "attention-mask-broadcast",
        _ONNXRUNTIME,
        "a mask with one row for all queries loads and then fails to run",
        "expand the mask to the number of queries",
        _broadcasts_mask_to_queries,
    ),
    Construct(
        "pad-bf16",
        _ONNXRUNTIME,
        "CUDA has no kernel that pads bfloat16, and a CPU none before version 1.32",
        "export in fp32 or fp16",
        _pads_bfloat16,
    ),
    Construct(
        "tensor-scatter-circular",
        _TENSORRT,
        "mode 'circular' is a parse error",
        "use ScatterND with computed slots",
        _is_circular_scatter,
    ),
    Construct(
        "rounding-scale-given",
        _TENSORRT,
        "a scale that is no constant is taken, and what it scales is computed in high precision",
        "give Q and DQ a constant, and multiply with what is not known before Q and behind DQ",
        rounding.scale_is_no_constant,
    ),
    Construct(
        "rounding-scale-sign",
        _TENSORRT,
        "a scale that is not positive is a parse error",
        "clamp scales when they are calibrated",
        rounding.scale_is_not_positive,
    ),
    Construct(
        "rounding-scale-shape",
        _TENSORRT,
        "scales that are neither one, nor as many as the axis is long, are a parse error",
        "give one scale, or one for each index of the axis",
        rounding.scale_does_not_fit,
    ),
    Construct(
        "rounding-zero-point",
        _TENSORRT,
        "a zero point other than zero is a parse error",
        "round symmetrically, without a zero point",
        rounding.zero_point_is_not_zero,
    ),
    Construct(
        "rounding-unsigned",
        _TENSORRT,
        "uint8, which Q is of where it names no type, is taken for int8",
        "set output_dtype, or give an int8 zero point",
        rounding.steps_are_unsigned,
    ),
    Construct(
        "rounding-saturate",
        _TENSORRT,
        "saturate = 0 is ignored: what is out of FP8's range becomes its largest value",
        "leave saturate out, which is 1",
        rounding.does_not_saturate,
    ),
    CUSTOM_OPERATOR,
    Construct(
        "custom-operator",
        _ONNXRUNTIME,
        "an operator outside the standard is refused unless its library is registered",
        "export the portable form",
        lambda node: _is_custom(node) and not node.domain.startswith("com.microsoft"),
    ),
)
"""Every known construct; ``lint`` looks for these."""
