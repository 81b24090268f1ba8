"""Weights for work without a checkpoint: frames fill the range of pixels and every part matters."""

import math
from collections.abc import Sequence

from torch import Tensor

from vidc.exporters.draw import AFTER_SILU, draw

_GAINS = {
    "conv1.weight": AFTER_SILU,
    "conv2.weight": 0.5 * AFTER_SILU,  # Keeps the sum over all blocks from growing.
    "cond_proj.2.weight": AFTER_SILU,
    "conv_out.weight": 1.2,
    "modulation.weight": 0.3,
    "qkv_proj.weight": 1.5,
}
"""Standard deviation of a layer's output for an input of unit variance; 1 by default."""

_WIDE_BIASES = ("conv_in.bias", "conv.bias", "conv1.bias", "conv2.bias")
"""Biases as large as what they are added to: a frame then depends less on past ones.

With small ones, one level in one past pixel changes a frame of ``world-tiny`` by 0.5%, with these
by 0.1%. Trained models are not chaotic either.
"""


def random_weight(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draws one weight, float32; it depends on the seed and its own name alone."""
    noise = draw(name, shape, seed)
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    if name.endswith(_WIDE_BIASES):
        return noise
    if name.endswith("bias"):
        return 0.1 * noise
    if "_emb." in name:
        return noise
    gain = next((gain for end, gain in _GAINS.items() if name.endswith(end)), 1.0)
    return noise * (gain / math.sqrt(math.prod(shape[1:])))
