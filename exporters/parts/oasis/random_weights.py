"""Random weights for builds without a checkpoint.

Attention is peaked and no gate is near zero, so an error in any layer shows in the frames.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from vidc.exporters.draw import AFTER_SILU, draw

_GATES = (2, 5)
"""Indices of the gates among the six vectors of a modulation."""


def random_weight(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draws one weight, float32, from the seed and the weight's name."""
    noise = draw(name, shape, seed)
    if name.endswith("adaLN_modulation.1.bias"):
        shifted = 0.2 * noise
        if not name.startswith("final_layer."):
            # Gates away from zero open every branch.
            shifted.view(6, -1)[list(_GATES)] += 0.5
        return shifted
    if name.endswith("bias"):
        return 0.1 * noise
    scaled = noise / math.sqrt(math.prod(shape[1:]))
    if name.endswith("to_qkv.weight"):
        queries_keys = 2 * shape[0] // 3
        scaled[:queries_keys] *= 1.4  # Attention logits then have a standard deviation of 2.
    if name.endswith("adaLN_modulation.1.weight"):
        return 0.3 * AFTER_SILU * scaled
    return AFTER_SILU * scaled if name.endswith(("mlp.2.weight", "fc2.weight")) else scaled
