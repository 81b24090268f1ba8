"""Weights for work without a checkpoint, of this VAE and of Stable Diffusion's."""

from collections.abc import Sequence

from torch import Tensor

from vidc.exporters.draw import AFTER_SILU
from vidc.exporters.parts import spatio_temporal_weights


def random_weight(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draws a weight under which decoded noise fills the range of pixels."""
    after_silu = (".conv1.", ".conv2.", ".conv_out.")
    gain = AFTER_SILU if any(part in name for part in after_silu) else 1.0
    if name == "decoder.conv_out.weight":
        gain = 0.35 * AFTER_SILU
    elif ".to_q." in name or ".to_k." in name:
        gain = 1.4  # Peaks the attention, whose logits then vary by 2 whatever the width.
    return spatio_temporal_weights.random_weight(name, shape, seed, gain)
