import pytest
import torch
from tensors import empty_tensors
from torch import Tensor

from vidc.exporters.component import Component
from vidc.exporters.parts.wan_vae.network import create
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict


@pytest.fixture(params=[0, 7])
def found(request, configure) -> dict[str, Component]:
    config = configure(block=3)
    vae = create(config.vae, torch.float32, "cpu")
    vae.load_state_dict(random_state_dict(config.vae, request.param, torch.float32))
    return config.vae_part.components(vae)


def decode(found: dict[str, Component]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """A latent block, the frames it becomes as a clip's second, and the caches it found."""
    first, steady = found["vae_decode_first"], found["vae_decode"]
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randn((2, *steady.signature["latent"].shape), generator=generator)
    caches = empty_tensors(steady.signature.states)
    first.module(blocks[0], *caches)
    (frames,) = steady.module(blocks[1], *(cache.clone() for cache in caches))
    return blocks[1], frames, caches


def test_the_draw_depends_on_the_seed_alone(configure):
    config = configure(block=1).vae
    first, again, other = (random_state_dict(config, seed, torch.float32) for seed in (3, 3, 4))
    half = random_state_dict(config, 3, torch.bfloat16)

    assert first.keys() == create(config, torch.float32, "meta").state_dict().keys()
    for key, value in first.items():
        assert torch.equal(value, again[key])
        assert not torch.equal(value, other[key])
        assert torch.equal(value.bfloat16(), half[key])


def test_decoded_frames_are_lively(found):
    _, frames, _ = decode(found)

    assert 0.05 < frames.std() < 0.8
    assert (frames.abs() == 1).float().mean() < 0.05
    assert frames.diff(dim=1).abs().mean() > 0.05


@pytest.mark.parametrize("found", [0], indirect=True)
def test_every_cache_matters(found):
    latent, frames, caches = decode(found)
    for forgotten in range(len(caches)):
        held = [c.zero_() if i == forgotten else c for i, c in enumerate(c.clone() for c in caches)]
        (changed,) = found["vae_decode"].module(latent, *held)
        assert (changed - frames).norm() > 0.05 * frames.norm(), f"cache {forgotten}"
