"""ONNX form of ``vidc::qk_norm_rope`` for ONNX Runtime on a CPU: one RotaryEmbedding for a tensor.

As arithmetic, a rotation is eight nodes that read and write the whole tensor.
"""

import torch
from torch import Tensor

from vidc.exporters.onnx.functional import Operators
from vidc.plugins.ops.qk_norm_rope import normalize_rows, qk_norm_rope


def _qk_norm_rope(
    query: Tensor,
    key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Computes the operator; arguments and results are those of its reference."""
    positions = torch.arange(query.shape[1]).expand(query.shape[:2])

    def rotated(rows: Tensor, weight: Tensor) -> Tensor:
        normed = normalize_rows(rows, weight, eps).float()
        turned: Tensor = torch.onnx.ops.rotary_embedding(
            normed, cos, sin, positions, interleaved=True, num_heads=heads
        )
        result: Tensor = turned.to(rows.dtype).unflatten(2, (heads, -1))
        return result

    return rotated(query, query_weight), rotated(key, key_weight)


ROTARY: Operators = {qk_norm_rope: _qk_norm_rope}
