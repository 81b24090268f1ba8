"""The streaming components against diffusers' VAE on the whole clip."""

from dataclasses import replace

import pytest
import torch
from tensors import empty_tensors
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.network import create
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict
from vidc.exporters.parts.wan_vae.streaming import VaeDecode

CLIPS = [(1, 5, 1), (2, 3, 1), (3, 2, 1), (3, 3, 1), (1, 5, 2), (3, 2, 2)]
"""Latent frames in a block, blocks, batch."""


@pytest.fixture(scope="module")
def vae(configure) -> nn.Module:
    config = configure(block=1).vae
    vae = create(config, torch.float32, "cpu")
    vae.load_state_dict(random_state_dict(config, 0, torch.float32))
    return vae


def relative_l2(value: Tensor, reference: Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


def replay(found: dict[str, Component], name: str, clip: Tensor, blocks: int) -> Tensor:
    """Feeds ``clip`` [B, frames, ...] block by block through ``<name>_first`` and ``<name>``."""
    first, steady = found[f"{name}_first"], found[name]
    caches = empty_tensors(steady.signature.states)
    for cache in caches:
        cache.fill_(float("nan"))  # The first block must not read what a state held before.
    sizes = [c.signature.inputs[0].shape[1] for c in (first, *[steady] * (blocks - 1))]
    outputs = []
    for index, chunk in enumerate(clip.split(sizes, dim=1)):
        component = steady if index else first
        (output,) = component.module(chunk, *caches)
        (spec,) = component.signature.outputs
        assert output.shape == spec.shape
        assert output.dtype == spec.torch_dtype
        assert output.is_contiguous()
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def unit_normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def statistics(config: VaeConfig) -> tuple[Tensor, Tensor]:
    return tuple(
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (config.latents_mean, config.latents_std)
    )


@pytest.mark.parametrize(("block", "blocks", "batch"), CLIPS)
def test_decode_equals_the_whole_clip(configure, vae, block, blocks, batch):
    config = configure(block=block, batch=batch)
    latents = unit_normal(batch, block * blocks, config.vae.z_dim, *config.latent_size)
    mean, std = statistics(config.vae)

    frames = replay(config.vae_part.components(vae), "vae_decode", latents, blocks)

    reference = vae.decode(latents.transpose(1, 2) * std + mean).sample.transpose(1, 2)
    assert frames.shape[1] == 4 * block * blocks - 3
    assert relative_l2(frames, reference) < 1e-5


@pytest.mark.parametrize("chunk", [1, 2, 4, 5])
@pytest.mark.parametrize("first", [True, False])
def test_chunks_of_frames_change_no_bit(configure, vae, first, chunk):
    config = configure(block=3)
    part = config.vae_part
    latent = unit_normal(*part.latent_shape)
    states = part.components(vae)["vae_decode"].signature.states
    past = [unit_normal(*spec.shape, seed=i) for i, spec in enumerate(states)]

    results = []
    for frames in (None, chunk):
        caches = [tensor.clone() for tensor in past]
        decode = VaeDecode(config.vae, vae, torch.float32, first, frames)
        results.append([*decode(latent, *caches), *caches])

    for whole, chunked in zip(*results, strict=True):
        assert torch.equal(whole, chunked)


def test_decodes_large_videos_in_chunks(configure):
    config = configure(block=3)
    assert config.vae_part.decoded_chunk is None
    large = replace(config.vae_part, height=480, width=832, config=VaeConfig())
    assert large.decoded_chunk == 4
    found = large.components(large.network("fp16"))
    assert found["vae_decode"].module.chunk == found["vae_decode_first"].module.chunk == 4


@pytest.mark.parametrize(("block", "blocks", "batch"), CLIPS)
def test_encode_equals_the_whole_clip(configure, vae, block, blocks, batch):
    config = configure(block=block, batch=batch)
    frames = unit_normal(
        batch, 4 * block * blocks - 3, 3, config.stream.height, config.stream.width
    ).tanh()
    mean, std = statistics(config.vae)

    latents = replay(config.vae_part.components(vae), "vae_encode", frames, blocks)

    posterior = vae.encode(frames.transpose(1, 2)).latent_dist
    reference = ((posterior.mode() - mean) / std).transpose(1, 2)
    assert latents.shape[1] == block * blocks
    assert relative_l2(latents, reference) < 1e-5


@pytest.mark.parametrize("direction", ["decode", "encode"])
@pytest.mark.parametrize("block", [1, 3])
def test_a_second_clip_in_the_same_caches_starts_afresh(configure, vae, direction, block):
    config = configure(block=block)
    found = config.vae_part.components(vae)
    first, steady = found[f"vae_{direction}_first"], found[f"vae_{direction}"]
    clip = [unit_normal(*c.signature.inputs[0].shape) for c in (first, steady)]

    caches = empty_tensors(steady.signature.states)
    runs = [
        [c.module(x, *caches)[0] for c, x in zip((first, steady), clip, strict=True)]
        for _ in range(2)
    ]

    for before, after in zip(*runs, strict=True):
        assert torch.equal(before, after)


def test_half_precision_stays_near_float32(configure):
    config = configure(block=2)
    latents = unit_normal(1, 4, config.vae.z_dim, *config.latent_size)
    decoded = {}
    for dtype in (torch.float32, torch.bfloat16):
        vae = create(config.vae, dtype, "cpu")
        vae.load_state_dict(random_state_dict(config.vae, 0, dtype))
        found = config.vae_part.components(vae)
        assert {s.torch_dtype for c in found.values() for s in c.signature.states} == {dtype}
        decoded[dtype] = replay(found, "vae_decode", latents, 2)
    error = relative_l2(decoded[torch.bfloat16], decoded[torch.float32])
    assert 0 < error < 0.1
