"""Merging the padding of a prompt changes nothing that the public transformer computes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from merged_padding import merged_attention
from random_transformer import random_weights
from tensors import empty_tensors

from vidc.compiler.config.program import program_spec
from vidc.exporters.parts.causal_wan import layers
from vidc.exporters.parts.causal_wan.layers import equal_last_rows
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.runtime.programs.rope import Rope

TOKENS = 512


@pytest.fixture(scope="module")
def transformers(configure):
    """Ours over one block and the components, then diffusers', with the same weights."""
    pytest.importorskip("diffusers")
    from wan_transformer import wan_transformer

    config = configure(batch=2, block=1, window=2, sink=1, height=16, width=16)
    sizes = replace(config.transformer, text_len=TOKENS)
    config = replace(config, transformer=sizes)
    weights = random_weights(sizes, seed=5)
    oracle = wan_transformer(sizes).eval().requires_grad_(False)
    oracle.load_state_dict(weights, strict=True)
    model = CausalWan(sizes).requires_grad_(False)
    model.load_state_dict(weights, strict=True)
    return config, config.transformer_part.components(model), oracle


def drawn(lengths, width, seed=0):
    """Prompts of these numbers of tokens, padded by zeros."""
    generator = torch.Generator().manual_seed(seed)
    embeds = torch.randn(len(lengths), TOKENS, width, generator=generator)
    for row, length in enumerate(lengths):
        embeds[row, length:] = 0
    return embeds


def flow_of(config, components, latent, embeds):
    """The flow, and the state that says how many keys are equal."""
    text_kv, denoise = components["text_kv"], components["denoise"]
    specs = denoise.signature.states
    states = dict(zip((s.name for s in specs), empty_tensors(specs), strict=True))
    text_kv.module(embeds, *(states[s.name] for s in text_kv.signature.states))
    cos, sin = empty_tensors([denoise.signature["rope_cos"], denoise.signature["rope_sin"]])
    Rope(program_spec(config), torch.device("cpu")).fill(cos, sin, torch.tensor([0]))
    (flow,) = denoise.module(
        latent, torch.full((2, 1), 833.0), cos, sin, torch.tensor([0]),
        torch.tensor([config.frame_tokens]), *states.values(),
    )  # fmt: skip
    return flow, states["text.padding"]


LENGTHS = st.one_of(st.sampled_from([0, 1, TOKENS - 1, TOKENS]), st.integers(0, TOKENS))


@pytest.mark.parametrize("merged", [False, True])
def test_any_prompt_gives_the_flow_of_the_public_transformer(transformers, monkeypatch, merged):
    """Every one of 512 keys takes part, also with the arithmetic of the GPU's kernel."""
    config, components, oracle = transformers
    if merged:
        monkeypatch.setattr(layers, "padded_attention", merged_attention)
    latent = torch.randn(2, 1, 16, *config.latent_size, generator=torch.Generator().manual_seed(1))

    @settings(max_examples=25)
    @given(lengths=st.tuples(LENGTHS, LENGTHS))
    def check(lengths):
        embeds = drawn(lengths, config.transformer.text_dim)
        flow, padding = flow_of(config, components, latent, embeds)
        # A prompt of all tokens has no padding: its last key stands for itself.
        assert padding.tolist() == [max(TOKENS - length, 1) for length in lengths]
        expected = oracle(
            latent.transpose(1, 2), torch.full((2,), 833.0), embeds, return_dict=False
        )[0].transpose(1, 2)
        assert (flow - expected).norm() / expected.norm() < 1e-5

    check()


def test_padding_of_another_length_gives_another_flow(transformers, monkeypatch):
    """The oracle notices a logarithm that is left out."""
    config, components, oracle = transformers
    monkeypatch.setattr(
        layers, "padded_attention",
        lambda query, key, value, length: merged_attention(
            query, key[:, : int(length[0])], value[:, : int(length[0])], length
        ),
    )  # fmt: skip
    latent = torch.randn(2, 1, 16, *config.latent_size, generator=torch.Generator().manual_seed(1))
    embeds = drawn((100, 100), config.transformer.text_dim)
    flow, _ = flow_of(config, components, latent, embeds)
    timestep = torch.full((2,), 833.0)
    expected = oracle(latent.transpose(1, 2), timestep, embeds, return_dict=False)[0]
    assert (flow - expected.transpose(1, 2)).norm() / expected.norm() > 1e-4


def test_only_equal_rows_at_the_end_are_counted():
    embeds = torch.zeros(4, 5, 3)
    embeds[0, 2, 1] = 1e-30
    embeds[1, 4] = -1.0
    embeds[2] = 7.0
    embeds[3, :3] = torch.tensor([[2.0], [2.0], [1.0]])
    assert equal_last_rows(embeds).tolist() == [2, 1, 5, 2]


def test_rows_of_nan_are_equal_to_none():
    assert equal_last_rows(torch.full((1, 4, 2), torch.nan)).tolist() == [1]
