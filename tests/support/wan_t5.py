"""Wan's own text encoder in plain PyTorch, on the weights of its download by name."""

import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]


def wan_names(layers: int) -> dict[str, str]:
    """transformers' names by those of ``models_t5_umt5-xxl-enc-bf16.pth``, written out by hand."""
    block = {
        "norm1.weight": "layer.0.layer_norm.weight",
        "attn.q.weight": "layer.0.SelfAttention.q.weight",
        "attn.k.weight": "layer.0.SelfAttention.k.weight",
        "attn.v.weight": "layer.0.SelfAttention.v.weight",
        "attn.o.weight": "layer.0.SelfAttention.o.weight",
        "pos_embedding.embedding.weight": "layer.0.SelfAttention.relative_attention_bias.weight",
        "norm2.weight": "layer.1.layer_norm.weight",
        "ffn.gate.0.weight": "layer.1.DenseReluDense.wi_0.weight",
        "ffn.fc1.weight": "layer.1.DenseReluDense.wi_1.weight",
        "ffn.fc2.weight": "layer.1.DenseReluDense.wo.weight",
    }
    return {
        "token_embedding.weight": "encoder.embed_tokens.weight",
        "norm.weight": "encoder.final_layer_norm.weight",
        **{
            f"blocks.{i}.{wan}": f"encoder.block.{i}.{name}"
            for i in range(layers)
            for wan, name in block.items()
        },
    }


def as_wan(state: State, layers: int) -> State:
    """An encoder's weights under the names of Wan's download."""
    return {wan: state[name].clone() for wan, name in wan_names(layers).items()}


def encode(state: State, ids: Tensor, heads: int) -> Tensor:
    """Embeddings of one text without padding, [L, E], as the published encoder defines them."""
    hidden = state["token_embedding.weight"][ids]
    layers = sum(name.endswith("norm1.weight") for name in state)
    for i in range(layers):
        own = {n.removeprefix(f"blocks.{i}."): t for n, t in state.items()}
        bias = own["pos_embedding.embedding.weight"][_buckets(len(ids))].permute(2, 0, 1)
        x = _norm(hidden, own["norm1.weight"])
        q, k, v = (_split(x @ own[f"attn.{name}.weight"].T, heads) for name in "qkv")
        attended = (q @ k.transpose(1, 2) + bias).softmax(-1) @ v
        hidden = hidden + attended.transpose(0, 1).flatten(1) @ own["attn.o.weight"].T
        x = _norm(hidden, own["norm2.weight"])
        gate = F.gelu(x @ own["ffn.gate.0.weight"].T, approximate="tanh")
        hidden = hidden + ((x @ own["ffn.fc1.weight"].T) * gate) @ own["ffn.fc2.weight"].T
    return _norm(hidden, state["norm.weight"])


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(1, (heads, -1)).transpose(0, 1)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _buckets(length: int) -> Tensor:
    """Bucket of each pair of positions less than 8 apart: 16 of 32 for each side."""
    assert length <= 8
    apart = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    return apart.abs() + (apart > 0) * 16
