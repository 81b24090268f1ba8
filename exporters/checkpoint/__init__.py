"""Checkpoints: reading them, giving them canonical names, merging LoRA, writing weights."""

from vidc.exporters.checkpoint.lazy import LazyTensor, cast
from vidc.exporters.checkpoint.load import Weights, load_weights
from vidc.exporters.checkpoint.write import Placement, weight_layout, write_weights

__all__ = [
    "LazyTensor",
    "Placement",
    "Weights",
    "cast",
    "load_weights",
    "weight_layout",
    "write_weights",
]
