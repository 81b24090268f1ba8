"""Networks and clips of Stable Video Diffusion in float16 beside diffusers' in float32, on a CPU.

Limits are those of ``configs/thresholds.toml``, which every bundle in fp16 is held to.
"""

import numpy as np
import pytest
import tiny_svd
import torch
from PIL import Image
from tiny_svd import CPU, drawn, relative_l2

from vidc.compiler.config.program import program_spec
from vidc.compiler.validate.gates import Where, load_thresholds
from vidc.compiler.validate.reference import part_engines
from vidc.exporters.models import with_weights
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.clip import Clip

IDS = torch.tensor([[6.0, 127.0, 0.02]])

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(scope="module")
def svd():
    return tiny_svd.model("sampler.steps=10", "image_encoder.image=224")


def limit(where):
    return load_thresholds("fp16")[where]["relative_l2"]


def halved(part):
    """The part's network in float16."""
    weights = {name: tensor.half() for name, tensor in tiny_svd.weights(part).items()}
    return with_weights(part.network("fp16"), weights)


@pytest.mark.parametrize("sigma", [700.0, 1.0, 0.002])
def test_unet(svd, sigma):
    height, width = svd.latent_size
    sample, embeds = drawn(2, svd.clip.frames, 8, height, width), drawn(1, 1, svd.unet.image_dim)
    time = 0.25 * torch.tensor([sigma]).log()
    components = svd.unet_part.components(halved(svd.unet_part))
    states = [
        torch.zeros(each.shape, dtype=torch.float16)
        for each in components["condition_clip"].signature.states
    ]
    components["condition_clip"].module(embeds, IDS, *states)
    (found,) = components["denoise"].module(sample, time, *states)
    tokens = torch.cat([torch.zeros_like(embeds), embeds])
    wanted = tiny_svd.unet(svd)(sample, time[0], tokens, IDS.repeat(2, 1)).sample
    assert 1e-6 < relative_l2(found, wanted) < limit(Where.COMPONENT)


def test_vae(svd):
    components = svd.vae_part.components(halved(svd.vae_part))
    image = drawn(1, 3, svd.clip.height, svd.clip.width)
    (found,) = components["vae_encode"].module(image)
    wanted = tiny_svd.vae(svd).encode(image).latent_dist.mode()
    assert 1e-6 < relative_l2(found, wanted) < limit(Where.COMPONENT)
    latent = drawn(1, svd.clip.chunk, 4, *svd.latent_size)
    (frames,) = components["vae_decode"].module(latent)
    decoded = tiny_svd.pipeline(svd).decode_latents(latent, svd.clip.chunk, svd.clip.chunk)
    assert 1e-6 < relative_l2(frames.transpose(1, 2), decoded) < limit(Where.COMPONENT)


def test_clip(svd):
    pixels = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    picture, wanted, found = Image.fromarray(pixels), [], []
    tiny_svd.pipeline(svd)(
        picture, height=128, width=128, num_frames=4, num_inference_steps=10,
        decode_chunk_size=svd.clip.chunk, generator=torch.Generator().manual_seed(5),
        latents=drawn(1, 4, 4, 16, 16), output_type="latent",
        callback_on_step_end=lambda pipe, step, time, x: wanted.append(x["latents"].clone()) or x,
    )  # fmt: skip
    engines = {}
    for part in svd.parts.values():
        engines |= part_engines(part, halved(part))
    session = Clip(Resources(program_spec(svd), engines, CPU))
    session.generate(
        picture, noise=drawn(1, 1, 4, 4, 16, 16), image_noise=drawn(1, 3, 128, 128, seed=5),
        progress=lambda step, x: found.append(x.clone()),
    )  # fmt: skip
    assert len(found) == len(wanted) == 10
    assert all(relative_l2(a, b) < limit(Where.ROLLOUT) for a, b in zip(found, wanted, strict=True))
