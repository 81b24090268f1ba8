"""A small TAEHV, for streams of 32 by 48 pixels in blocks of three latent frames."""

from pathlib import Path

from safetensors.torch import save_file

from vidc.exporters.parts.taehv.config import TaehvConfig
from vidc.exporters.parts.taehv.part import TaehvPart

CONFIG = TaehvConfig(widths=(16, 8, 8, 8), encoder_width=8)
SIZES = (f"taehv.widths={list(CONFIG.widths)}", f"taehv.encoder_width={CONFIG.encoder_width}")
"""Assignments that give a model this one's sizes."""


def save(path: Path) -> Path:
    """Writes random weights as they are published: float16 under the published names."""
    drawn = TaehvPart(CONFIG, 1, 3, 32, 48).random_weights(2)
    save_file({name: tensor.load().half() for name, tensor in drawn.items()}, path)
    return path
