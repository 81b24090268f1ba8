"""Signatures of the components, and their export."""

from dataclasses import replace

import pytest
import torch
from tensors import empty_tensors

from vidc.exporters.parts.wan_vae.network import create
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict
from vidc.plugins.signature import Access

NAMES = ["vae_decode_first", "vae_decode", "vae_encode_first", "vae_encode"]


def test_both_components_of_a_direction_share_their_caches(configure):
    config = configure(block=3, batch=2)
    found = config.vae_part.components(create(config.vae, torch.float16, "meta"))

    assert sorted(found) == sorted(NAMES)
    for direction, network, count in (("decode", "decoder", 32), ("encode", "encoder", 24)):
        first, steady = (found[f"vae_{direction}{end}"].signature for end in ("_first", ""))
        assert [s.name for s in steady.states] == [f"vae.{network}.cache.{i}" for i in range(count)]
        assert [(s.name, s.shape, s.dtype) for s in first.states] == [
            (s.name, s.shape, s.dtype) for s in steady.states
        ]
        assert {s.access for s in first.states} == {Access.WRITE}
        assert {s.access for s in steady.states} == {Access.READ_WRITE}
        assert {s.shape[0] for s in steady.states} == {2}


def test_blocks_have_the_frames_of_their_latents(configure):
    config = configure(block=3, batch=2)
    found = config.vae_part.components(create(config.vae, torch.float32, "meta"))

    for name, frames in zip(NAMES, (9, 12, 9, 12), strict=True):
        signature = found[name].signature
        assert signature["latent"].shape == (2, 3, 16, 4, 6)
        assert signature["frames"].shape == (2, frames, 3, 32, 48)
        source = "latent" if "decode" in name else "frames"
        assert [t.name for t in signature.inputs] == [source]


def test_components_share_the_weights_of_their_direction(configure):
    config = configure(block=1)
    vae = create(config.vae, torch.float32, "cpu")
    found = config.vae_part.components(vae)

    weights = {f"vae.{name}": value for name, value in vae.named_parameters()}
    used = set()
    for component in found.values():
        for name, value in component.module.named_parameters():
            assert value is weights[name]
            used.add(name)
    assert used == set(weights)
    assert not any("encoder" in n for n, _ in found["vae_decode"].module.named_parameters())


def shallow(config):
    """A model whose VAE has one residual block a level: its export takes less time."""
    return replace(config, vae=replace(config.vae, res_blocks=1))


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("vae_decode_first", 2),
        ("vae_decode", 1),
        ("vae_encode_first", 2),
        ("vae_encode", 1),
        *(pytest.param(name, 3, marks=pytest.mark.deep) for name in NAMES),
    ],
)
def test_exported_program_computes_the_module_and_lists_its_states(configure, name, block):
    config = shallow(configure(block=block))
    vae = create(config.vae, torch.float32, "cpu")
    vae.load_state_dict(random_state_dict(config.vae, 0, torch.float32))
    component = config.vae_part.components(vae)[name]
    signature = component.signature
    generator = torch.Generator().manual_seed(2)
    arguments = [torch.randn(t.shape, generator=generator) for t in signature.arguments]

    program = torch.export.export(
        component.module, empty_tensors(signature.arguments), strict=False
    ).run_decompositions({})

    inputs = program.graph_signature.user_inputs
    assert list(program.graph_signature.user_inputs_to_mutate.values()) == list(inputs[1:])
    exported, eager = ([t.clone() for t in arguments] for _ in range(2))
    (output,) = program.module()(*exported)
    (reference,) = component.module(*eager)
    torch.testing.assert_close(output, reference)
    torch.testing.assert_close(exported, eager)


@pytest.mark.parametrize("name", ["vae_decode_first", "vae_encode"])
def test_exports_from_the_meta_device_with_the_statistics_kept(configure, name):
    config = shallow(configure(block=2))
    component = config.vae_part.components(create(config.vae, torch.bfloat16, "meta"))[name]
    signature = component.signature

    program = torch.export.export(
        component.module, empty_tensors(signature.arguments, "meta"), strict=False
    ).run_decompositions({})

    assert len(program.graph_signature.user_inputs_to_mutate) == len(signature.states)
    assert set(program.state_dict) == {n for n, _ in component.module.named_parameters()}
    values = {tuple(c.flatten().tolist()) for c in program.constants.values()}
    expected = torch.tensor([config.vae.latents_mean, config.vae.latents_std])
    assert values == {tuple(row.tolist()) for row in expected}
