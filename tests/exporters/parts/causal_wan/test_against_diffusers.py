"""One block with an empty cache is what diffusers' Wan transformer computes."""

from dataclasses import replace

import pytest
import torch
from random_transformer import random_weights
from tensors import empty_tensors

from vidc.compiler.config.program import program_spec
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.runtime.programs.rope import Rope

pytest.importorskip("diffusers")

from wan_transformer import wan_transformer


def reference(sizes):
    return wan_transformer(sizes).eval().requires_grad_(False)


@pytest.mark.parametrize("head_dim", [24, 64, 128])
@pytest.mark.parametrize("batch", [1, 2])
def test_one_block(configure, head_dim, batch):
    config = configure(batch=batch)
    sizes = replace(config.transformer, dim=2 * head_dim)
    config = replace(config, transformer=sizes)
    weights = random_weights(sizes, seed=5)
    oracle = reference(sizes)
    oracle.load_state_dict(weights, strict=True)
    model = CausalWan(sizes).requires_grad_(False)
    model.load_state_dict(weights, strict=True)

    torch.manual_seed(0)
    latent = torch.randn(batch, 3, 16, *config.latent_size)
    embeds = torch.randn(batch, sizes.text_len, sizes.text_dim)
    timestep = 833.0

    made = config.transformer_part.components(model)
    text_kv, denoise = made["text_kv"], made["denoise"]
    states = {
        s.name: t
        for s, t in zip(
            denoise.signature.states, empty_tensors(denoise.signature.states), strict=True
        )
    }
    text_kv.module(embeds, *(states[s.name] for s in text_kv.signature.states))
    cos, sin = empty_tensors([denoise.signature["rope_cos"], denoise.signature["rope_sin"]])
    Rope(program_spec(config), torch.device("cpu")).fill(cos, sin, torch.tensor([0]))
    (flow,) = denoise.module(
        latent,
        torch.full((batch, 3), timestep),
        cos,
        sin,
        torch.tensor([0]),
        torch.tensor([3 * config.frame_tokens]),
        *states.values(),
    )
    expected = oracle(
        latent.transpose(1, 2), torch.full((batch,), timestep), embeds, return_dict=False
    )[0].transpose(1, 2)
    assert (flow - expected).norm() / expected.norm() < 1e-5


def test_parameters_are_those_of_diffusers(configure):
    sizes = configure().transformer
    expected = {name: tuple(p.shape) for name, p in reference(sizes).named_parameters()}
    found = {name: tuple(p.shape) for name, p in CausalWan(sizes).named_parameters()}
    assert found == expected


def test_parameter_count_of_longlive():
    with torch.device("meta"):
        model = CausalWan(TransformerConfig(dim=1536, ffn_dim=8960, heads=12, layers=30))
    assert sum(p.numel() for p in model.parameters()) == 1_418_996_800
    assert sum(isinstance(m, torch.nn.Linear) for m in model.modules()) == 306
