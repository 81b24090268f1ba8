"""Each network of Stable Video Diffusion beside diffusers' and transformers', in float32."""

import pytest
import tiny_svd
import torch
from diffusers.pipelines.stable_video_diffusion.pipeline_stable_video_diffusion import (
    _resize_with_antialiasing,
)
from tiny_svd import drawn, relative_l2

from vidc.exporters.parts.clip_vision.components import resized

LIMIT = 1e-5
IDS = torch.tensor([[6.0, 127.0, 0.02]])

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(scope="module")
def svd():
    return tiny_svd.model()


def conditioned(svd, embeds):
    """The component `denoise` as a function, and the states of `condition`."""
    components = svd.unet_part.components(tiny_svd.network(svd.unet_part))
    states = [torch.zeros(each.shape) for each in components["condition_clip"].signature.states]
    components["condition_clip"].module(embeds, IDS, *states)
    return components["denoise"].module, states


@pytest.mark.parametrize("sigma", [700.0, 1.0, 0.002])
def test_unet(svd, sigma):
    height, width = svd.latent_size
    sample, embeds = drawn(2, svd.clip.frames, 8, height, width), drawn(1, 1, svd.unet.image_dim)
    time = 0.25 * torch.tensor([sigma]).log()
    denoise, states = conditioned(svd, embeds)
    (found,) = denoise(sample, time, *states)
    tokens = torch.cat([torch.zeros_like(embeds), embeds])
    wanted = tiny_svd.unet(svd)(sample, time[0], tokens, IDS.repeat(2, 1)).sample
    assert relative_l2(found, wanted) < LIMIT


def test_a_half_alone_is_the_half_of_a_batch(svd):
    """Rows of both halves mixed in diffusers' temporal cross-attention until 0.27."""
    height, width = svd.latent_size
    sample, embeds = drawn(2, svd.clip.frames, 8, height, width), drawn(1, 1, svd.unet.image_dim)
    time = torch.tensor([0.5])
    tokens = torch.cat([torch.zeros_like(embeds), embeds])
    both = tiny_svd.unet(svd)(sample, time[0], tokens, IDS.repeat(2, 1)).sample
    low = tiny_svd.model("clip.low_memory=true")
    denoise, states = conditioned(low, embeds)
    for half in (0, 1):
        one = slice(half, half + 1)
        alone = tiny_svd.unet(svd)(sample[one], time[0], tokens[one], IDS).sample
        assert relative_l2(both[one], alone) < LIMIT
        (found,) = denoise(sample[one], time, torch.tensor([half]), *states)
        assert relative_l2(found, alone) < LIMIT


def test_image_and_frames_change_the_prediction():
    svd = tiny_svd.model("clip.height=64", "clip.width=64")
    height, width = svd.latent_size
    sample, time = drawn(2, svd.clip.frames, 8, height, width), torch.tensor([0.5])
    denoise, states = conditioned(svd, drawn(1, 1, svd.unet.image_dim))
    (before,) = denoise(sample, time, *states)
    for index in range(len(states)):
        changed = [state.clone() for state in states]
        changed[index] += drawn(*changed[index].shape, seed=index)
        (after,) = denoise(sample, time, *changed)
        assert relative_l2(after, before) > 1e-3, index


def test_vae_encoder(svd):
    image = drawn(1, 3, svd.clip.height, svd.clip.width)
    components = svd.vae_part.components(tiny_svd.network(svd.vae_part))
    (found,) = components["vae_encode"].module(image)
    assert relative_l2(found, tiny_svd.vae(svd).encode(image).latent_dist.mode()) < LIMIT


@pytest.mark.parametrize(("frames", "chunk"), [(14, 1), (14, 7), (25, 5), (25, 25)])
def test_vae_decoder(frames, chunk):
    sized = (f"clip.frames={frames}", f"clip.chunk={chunk}", "clip.height=64", "clip.width=64")
    svd = tiny_svd.model(*sized)
    decode = svd.vae_part.components(tiny_svd.network(svd.vae_part))["vae_decode"].module
    latent = drawn(1, frames, 4, *svd.latent_size)
    found = torch.cat([decode(part)[0] for part in latent.split(chunk, 1)], 1)
    wanted = tiny_svd.pipeline(svd).decode_latents(latent, frames, chunk)
    assert relative_l2(found.transpose(1, 2), wanted) < LIMIT


def test_frames_depend_on_the_chunk():
    latent, frames = drawn(1, 4, 4, 8, 8), []
    for chunk in (2, 4):
        svd = tiny_svd.model(f"clip.chunk={chunk}", "clip.height=64", "clip.width=64")
        decode = svd.vae_part.components(tiny_svd.network(svd.vae_part))["vae_decode"].module
        frames.append(torch.cat([decode(part)[0] for part in latent.split(chunk, 1)], 1))
    assert relative_l2(*frames) > 0.01


@pytest.mark.parametrize("size", [(64, 128), (50, 56), (300, 70)])
def test_resizing(size):
    image = drawn(1, 3, *size)
    assert relative_l2(resized(image, 56), _resize_with_antialiasing(image, (56, 56))) < LIMIT


def test_image_encoder(svd):
    image = drawn(1, 3, svd.clip.height, svd.clip.width).clamp(-1, 1)
    part = svd.parts["image_encoder"]
    (found,) = part.components(tiny_svd.network(part))["image_encoder"].module(image)
    pipe = tiny_svd.pipeline(svd)
    side = svd.image_encoder.image
    pixels = (_resize_with_antialiasing(image, (side, side)) + 1) / 2
    mean, std = (
        torch.tensor(values)[:, None, None]
        for values in (pipe.feature_extractor.image_mean, pipe.feature_extractor.image_std)
    )
    wanted = pipe.image_encoder((pixels - mean) / std).image_embeds
    assert relative_l2(found[:, 0], wanted) < LIMIT


@pytest.mark.parametrize("name", ["unet", "vae", "image_encoder"])
def test_weights_have_the_names_of_the_references(svd, name):
    reference = getattr(tiny_svd, name)(svd).state_dict()
    shapes = {key: tuple(tensor.shape) for key, tensor in reference.items()}
    assert svd.parts[name].shapes() == shapes
