"""Checkpoints: reading them, giving them canonical names, merging LoRA, writing weights."""

from vidc.exporters.checkpoint.digest import Digests
from vidc.exporters.checkpoint.layout import Layout
from vidc.exporters.checkpoint.lazy import LazyTensor, cast
from vidc.exporters.checkpoint.load import Weights, load_weights, lora_files
from vidc.exporters.checkpoint.read import checkpoint_files
from vidc.exporters.checkpoint.write import Placement, weight_layout, write_weights

__all__ = [
    "Digests",
    "Layout",
    "LazyTensor",
    "Placement",
    "Weights",
    "cast",
    "checkpoint_files",
    "load_weights",
    "lora_files",
    "weight_layout",
    "write_weights",
]
