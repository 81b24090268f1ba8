"""Names of a Wan transformer's weights in checkpoints, and the sizes that their shapes imply.

diffusers' names are canonical.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vidc.exporters.checkpoint.layout import Layout, by_name, renamed
from vidc.exporters.parts.causal_wan.config import TransformerConfig

Shapes = Mapping[str, Sequence[int]]

_TOP = {
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
    "head.modulation": "scale_shift_table",
}
_ATTENTION = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}
_BLOCK = {
    **{f"self_attn.{old}": f"attn1.{new}" for old, new in _ATTENTION.items()},
    **{f"cross_attn.{old}": f"attn2.{new}" for old, new in _ATTENTION.items()},
    "self_attn": "attn1",
    "cross_attn": "attn2",
    "norm2": "norm3",
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "modulation": "scale_shift_table",
}

_AXES = {
    "dim": ("patch_embedding.weight", slice(0, 1)),
    "channels": ("patch_embedding.weight", slice(1, 2)),
    "patch": ("patch_embedding.weight", slice(2, 5)),
    "ffn_dim": ("blocks.0.ffn.net.0.proj.weight", slice(0, 1)),
    "freq_dim": ("condition_embedder.time_embedder.linear_1.weight", slice(1, 2)),
    "text_dim": ("condition_embedder.text_embedder.linear_1.weight", slice(1, 2)),
}
_LAYER = re.compile(r"blocks\.(\d+)\.attn1\.")


def config_settings(sizes: TransformerConfig) -> dict[str, dict[str, Any]]:
    """Settings that a checkpoint's config may not contradict, by its class."""
    original = {
        "patch_size": sizes.patch,
        "dim": sizes.dim,
        "ffn_dim": sizes.ffn_dim,
        "freq_dim": sizes.freq_dim,
        "text_dim": sizes.text_dim,
        "text_len": sizes.text_len,
        "in_dim": sizes.channels,
        "out_dim": sizes.channels,
        "num_heads": sizes.heads,
        "num_layers": sizes.layers,
        "qk_norm": True,
        "cross_attn_norm": True,
        "eps": sizes.eps,
        **dict.fromkeys(("model_type", "window_size", "local_attn_size", "sink_size"), ...),
    }
    diffusers = {
        "patch_size": sizes.patch,
        "num_attention_heads": sizes.heads,
        "attention_head_dim": sizes.head_dim,
        "in_channels": sizes.channels,
        "out_channels": sizes.channels,
        "text_dim": sizes.text_dim,
        "freq_dim": sizes.freq_dim,
        "ffn_dim": sizes.ffn_dim,
        "num_layers": sizes.layers,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
        "eps": sizes.eps,
        "rope_max_seq_len": ...,
    }
    return {
        "WanTransformer3DModel": diffusers,
        "WanModel": original,
        "CausalWanModel": original,
    }


def canonical_name(name: str) -> str:
    """diffusers' name of a parameter or module that has an original Wan name.

    A name that is not part of the model stays as it is.
    """
    return _in_model(name, _TOP, _BLOCK)


def original_name(name: str) -> str:
    """The original Wan name of a parameter with diffusers' name."""
    top, block = ({new: old for old, new in table.items()} for table in (_TOP, _BLOCK))
    return _in_model(name, top, block)


def _in_model(name: str, top: Mapping[str, str], inside_block: Mapping[str, str]) -> str:
    block, index, inside = (*name.split(".", 2), "", "")[:3]
    if block == "blocks" and inside:
        return f"blocks.{index}.{renamed(inside, inside_block)}"
    return renamed(name, top)


LAYOUTS = (
    Layout("diffusers WanTransformer3DModel", ("attn1", "attn2", "ffn.net", "condition_embedder")),
    Layout(
        "original Wan transformer",
        ("self_attn", "cross_attn", "ffn.0", "ffn.2", "time_embedding", "text_embedding"),
        by_name(canonical_name),
        original_name,
    ),
)


def disagreements(found: Shapes, expected: Shapes) -> list[str]:
    """Preset settings that a checkpoint contradicts, as ``model.dim = 5120, not 1536``.

    Empty where names are missing, and for models that are no Wan transformer. The number of
    heads, ``text_len`` and ``eps`` leave no trace in the weights.
    """
    have, want = _sizes(found), _sizes(expected)
    return [
        f"model.{setting} = {_text(have[setting])}, not {_text(want[setting])}"
        for setting in want
        if setting in have and have[setting] != want[setting]
    ]


def _sizes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    sizes = {
        setting: tuple(shapes[name][axes])
        for setting, (name, axes) in _AXES.items()
        if name in shapes
    }
    blocks = {int(match[1]) for name in shapes if (match := _LAYER.match(name))}
    return sizes | ({"layers": (len(blocks),)} if blocks else {})


def _text(size: tuple[int, ...]) -> str:
    return str(size[0] if len(size) == 1 else list(size))
