"""Names of a UMT5 encoder's weights in checkpoints, and the sizes that their shapes imply.

transformers' names are canonical.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vidc.exporters.checkpoint.layout import Layout, by_name

EMBEDDING = "encoder.embed_tokens.weight"
FINAL_NORM = "encoder.final_layer_norm"
_TOP = {"token_embedding": "encoder.embed_tokens", "norm": FINAL_NORM}
_ATTENTION = "layer.0.SelfAttention"
_BLOCK = {
    "norm1": "layer.0.layer_norm",
    **{f"attn.{name}": f"{_ATTENTION}.{name}" for name in "qkvo"},
    "pos_embedding.embedding": f"{_ATTENTION}.relative_attention_bias",
    "norm2": "layer.1.layer_norm",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
}
_LAYER = re.compile(r"encoder\.block\.(\d+)\.")


def _canonical(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    block, index, inside = (*module.split(".", 2), "", "")[:3]
    if block == "blocks" and inside in _BLOCK:
        return f"encoder.block.{index}.{_BLOCK[inside]}.{leaf}"
    return f"{_TOP[module]}.{leaf}" if module in _TOP else name


LAYOUTS = (
    Layout("UMT5 text encoder", ("SelfAttention", "DenseReluDense")),
    Layout(
        "original Wan text encoder", ("attn", "ffn.gate", "ffn.fc1", "ffn.fc2"), by_name(_canonical)
    ),
)


def sizes(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Sizes of the encoder with weights of these shapes, as its ``config.json`` names them.

    Raises:
        KeyError: a weight is missing.
        ValueError: a weight has another rank.
    """
    attention = f"encoder.block.0.{_ATTENTION}"
    vocab, width = shapes[EMBEDDING]
    buckets, heads = shapes[f"{attention}.relative_attention_bias.weight"]
    inner, _ = shapes[f"{attention}.q.weight"]
    feed_forward, _ = shapes["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"]
    return {
        "vocab_size": vocab,
        "d_model": width,
        "d_kv": inner // max(heads, 1),
        "d_ff": feed_forward,
        "num_layers": len({match[1] for name in shapes if (match := _LAYER.match(name))}),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
    }
