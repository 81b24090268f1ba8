"""A tiny Wan transformer's weights, under diffusers' names and under the original ones."""

import pytest
import torch
from torch import Tensor

LAYERS = 2

# Written out by hand: original name on the left, diffusers' on the right.
MODEL_NAMES = {
    "patch_embedding.weight": "patch_embedding.weight",
    "patch_embedding.bias": "patch_embedding.bias",
    "text_embedding.0.weight": "condition_embedder.text_embedder.linear_1.weight",
    "text_embedding.0.bias": "condition_embedder.text_embedder.linear_1.bias",
    "text_embedding.2.weight": "condition_embedder.text_embedder.linear_2.weight",
    "text_embedding.2.bias": "condition_embedder.text_embedder.linear_2.bias",
    "time_embedding.0.weight": "condition_embedder.time_embedder.linear_1.weight",
    "time_embedding.0.bias": "condition_embedder.time_embedder.linear_1.bias",
    "time_embedding.2.weight": "condition_embedder.time_embedder.linear_2.weight",
    "time_embedding.2.bias": "condition_embedder.time_embedder.linear_2.bias",
    "time_projection.1.weight": "condition_embedder.time_proj.weight",
    "time_projection.1.bias": "condition_embedder.time_proj.bias",
    "head.head.weight": "proj_out.weight",
    "head.head.bias": "proj_out.bias",
    "head.modulation": "scale_shift_table",
}
BLOCK_NAMES = {
    "modulation": "scale_shift_table",
    "norm3.weight": "norm2.weight",
    "norm3.bias": "norm2.bias",
    "ffn.0.weight": "ffn.net.0.proj.weight",
    "ffn.0.bias": "ffn.net.0.proj.bias",
    "ffn.2.weight": "ffn.net.2.weight",
    "ffn.2.bias": "ffn.net.2.bias",
    "self_attn.q.weight": "attn1.to_q.weight",
    "self_attn.q.bias": "attn1.to_q.bias",
    "self_attn.k.weight": "attn1.to_k.weight",
    "self_attn.k.bias": "attn1.to_k.bias",
    "self_attn.v.weight": "attn1.to_v.weight",
    "self_attn.v.bias": "attn1.to_v.bias",
    "self_attn.o.weight": "attn1.to_out.0.weight",
    "self_attn.o.bias": "attn1.to_out.0.bias",
    "self_attn.norm_q.weight": "attn1.norm_q.weight",
    "self_attn.norm_k.weight": "attn1.norm_k.weight",
    "cross_attn.q.weight": "attn2.to_q.weight",
    "cross_attn.q.bias": "attn2.to_q.bias",
    "cross_attn.k.weight": "attn2.to_k.weight",
    "cross_attn.k.bias": "attn2.to_k.bias",
    "cross_attn.v.weight": "attn2.to_v.weight",
    "cross_attn.v.bias": "attn2.to_v.bias",
    "cross_attn.o.weight": "attn2.to_out.0.weight",
    "cross_attn.o.bias": "attn2.to_out.0.bias",
    "cross_attn.norm_q.weight": "attn2.norm_q.weight",
    "cross_attn.norm_k.weight": "attn2.norm_k.weight",
}


@pytest.fixture(scope="session")
def wan() -> torch.nn.Module:
    """diffusers' transformer in a tiny size, with norms that differ from one another."""
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=6,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        freq_dim=10,
        ffn_dim=14,
        num_layers=LAYERS,
        rope_max_seq_len=16,
    )
    for parameter in model.parameters():
        parameter.data.normal_()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def canonical(wan: torch.nn.Module) -> dict[str, Tensor]:
    return wan.state_dict()


@pytest.fixture(scope="session")
def original_names() -> dict[str, str]:
    """Original names to canonical ones."""
    return MODEL_NAMES | {
        f"blocks.{i}.{old}": f"blocks.{i}.{new}"
        for i in range(LAYERS)
        for old, new in BLOCK_NAMES.items()
    }


@pytest.fixture(scope="session")
def original(canonical: dict[str, Tensor], original_names: dict[str, str]) -> dict[str, Tensor]:
    assert set(original_names.values()) == set(canonical)
    return {old: canonical[new] for old, new in original_names.items()}


@pytest.fixture(scope="session")
def expected(canonical: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in canonical.items()}
