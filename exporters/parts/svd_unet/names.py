"""Names of an SVD UNet's weights in checkpoints, and the sizes that their shapes imply.

diffusers' names are canonical. The original names are those of Stability-AI/generative-models.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidc.exporters.checkpoint.layout import Layout, by_name, renamed
from vidc.exporters.parts.svd_unet.config import IDS, UnetConfig
from vidc.plugins.errors import BuildError

Shapes = Mapping[str, Sequence[int]]

_LAYERS = 3
"""Blocks of a resolution in the original numbering, on the way down and up."""
_TOP = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "label_emb.0.0": "add_embedding.linear_1",
    "label_emb.0.2": "add_embedding.linear_2",
    "input_blocks.0.0": "conv_in",
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
    "middle_block.0": "mid_block.resnets.0",
    "middle_block.1": "mid_block.attentions.0",
    "middle_block.2": "mid_block.resnets.1",
}
RESNET = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
"""Layers of a residual block by their original names."""
_ATTENTION = {
    "time_stack": "temporal_transformer_blocks",
    "time_pos_embed.0": "time_pos_embed.linear_1",
    "time_pos_embed.2": "time_pos_embed.linear_2",
}
_BLOCK = re.compile(r"(input|output)_blocks\.(\d+)\.(\d+)\.(.+)")
_VARIANT = re.compile(r"(?:animatelcm-)?svd([-_]xt)?(?:[-_.].*)?\.safetensors")
_FRAMES = {False: 14, True: 25}
"""Frames of the released variants, without and with ``xt`` in their names."""
_AXES = {
    "channels": ("conv_in.weight", 0),
    "image_dim": ("mid_block.attentions.0.transformer_blocks.0.attn2.to_v.weight", 1),
}


def config_settings(sizes: UnetConfig) -> dict[str, Any]:
    """Settings that the config of diffusers' UNet may not contradict."""
    attention = "CrossAttn{}BlockSpatioTemporal"
    return {
        "in_channels": 8,
        "out_channels": 4,
        "block_out_channels": sizes.channels,
        "num_attention_heads": sizes.heads,
        "layers_per_block": sizes.layers,
        "cross_attention_dim": sizes.image_dim,
        "transformer_layers_per_block": 1,
        "addition_time_embed_dim": sizes.id_dim,
        "projection_class_embeddings_input_dim": IDS * sizes.id_dim,
        "num_frames": sizes.num_frames,
        "down_block_types": [*[attention.format("Down")] * 3, "DownBlockSpatioTemporal"],
        "up_block_types": ["UpBlockSpatioTemporal", *[attention.format("Up")] * 3],
        "sample_size": ...,
    }


def require_frames(checkpoint: Path, frames: int) -> None:
    """Refuses a file with the name of a released variant that was trained for other frames.

    Args:
        checkpoint: a file or folder.
        frames: number of frames that the preset's weights were trained for.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-CONFIG``.
    """
    match = _VARIANT.match(checkpoint.name.lower())
    trained = _FRAMES[bool(match[1])] if match else frames
    if trained != frames:
        raise BuildError(
            "VIDC-CHECKPOINT-CONFIG",
            f"{checkpoint} has the name of the variant for {trained} frames, and the preset has "
            f"model.num_frames = {frames}",
            f"choose preset {'svd-xt' if trained > frames else 'svd'}, or --set "
            f"model.num_frames={trained} to generate another number of frames with these weights",
        )


def canonical_name(name: str) -> str:
    """diffusers' name of a parameter that has an original name; any other stays as it is."""
    match = _BLOCK.fullmatch(name)
    if match is None or name.startswith("input_blocks.0."):
        top = renamed(name, _TOP)
        for kind, inside in (("resnets", resnet_name), ("attentions", _attention_name)):
            head, found, rest = top.partition(f"mid_block.{kind}.")
            if found and not head and top != name:
                number, _, layer = rest.partition(".")
                return f"{found}{number}.{inside(layer)}"
        return top
    way, number, place, rest = match.groups()
    block, index = divmod(int(number) - (way == "input"), _LAYERS)
    prefix = f"{'down' if way == 'input' else 'up'}_blocks.{block}"
    if rest.startswith("op."):
        return f"{prefix}.downsamplers.0.conv.{rest.removeprefix('op.')}"
    if rest.startswith("conv."):
        return f"{prefix}.upsamplers.0.{rest}"
    if place == "0":
        return f"{prefix}.resnets.{index}.{resnet_name(rest)}"
    return f"{prefix}.attentions.{index}.{_attention_name(rest)}"


def resnet_name(name: str) -> str:
    """diffusers' name of a parameter inside a residual block."""
    if name.startswith("time_mixer."):
        return name
    inside = name.removeprefix("time_stack.")
    branch = "spatial" if inside == name else "temporal"
    return f"{branch}_res_block.{renamed(inside, RESNET)}"


def _attention_name(name: str) -> str:
    return renamed(name, _ATTENTION)


LAYOUTS = (
    Layout("diffusers UNetSpatioTemporalConditionModel", ("down_blocks", "mid_block", "up_blocks")),
    Layout(
        "original SVD UNet",
        ("input_blocks", "middle_block", "output_blocks"),
        by_name(canonical_name),
    ),
)


def disagreements(found: Shapes, expected: Shapes) -> list[str]:
    """Preset settings that a checkpoint contradicts, as ``model.image_dim = 1024, not 32``."""
    return [
        f"model.{setting} begins with {found[name][axis]}, not {expected[name][axis]}"
        if setting == "channels"
        else f"model.{setting} = {found[name][axis]}, not {expected[name][axis]}"
        for setting, (name, axis) in _AXES.items()
        if name in found and found[name][axis] != expected[name][axis]
    ]
