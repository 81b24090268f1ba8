"""16-bit activations for ONNX Runtime, whose CUDA kernels round intermediate values."""

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule, RewriteRuleSet

_WIDE = ir.DataType.FLOAT.value
_NARROW = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16)


def widen_activations(model: ir.Model) -> None:
    """Computes 16-bit tanh-GELU and SiLU in float32 with one rounding, as PyTorch does.

    ONNX Runtime's GELU rounds after each operation, and its SiLU is two operators.

    Args:
        model: changed in place; its values' dtypes are known.
    """
    _RULES.apply_to_model(model)


def _is_narrow(context: Any, x: ir.Value, **_: object) -> bool:
    return x.dtype in _NARROW


def _gelu(op: Any, x: ir.Value) -> Any:
    return op.Gelu(x, approximate="tanh")


def _wide_gelu(op: Any, x: ir.Value) -> Any:
    return op.Cast(_gelu(op, op.Cast(x, to=_WIDE)), to=x.dtype)


def _silu(op: Any, x: ir.Value) -> Any:
    return op.Mul(x, op.Sigmoid(x))


def _wide_silu(op: Any, x: ir.Value) -> Any:
    return op.Cast(_silu(op, op.Cast(x, to=_WIDE)), to=x.dtype)


_RULES = RewriteRuleSet(
    [RewriteRule(_gelu, _wide_gelu, _is_narrow), RewriteRule(_silu, _wide_silu, _is_narrow)],
    commute=True,
)
