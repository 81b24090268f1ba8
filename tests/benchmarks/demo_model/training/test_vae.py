"""The VAE in training: the chunks it streams in, its loss, and what it measures."""

import math
from dataclasses import replace

import pytest
import torch
from demo_model.clip import frames_of
from demo_model.split import Split, split_of_seed
from demo_model.train_vae import Plan, load_vae, run
from demo_model.training import log
from demo_model.training.clips import for_vae
from demo_model.training.loop import Options
from demo_model.training.vae import Posterior, Statistics, decode, encode
from demo_model.training.vae_loss import Weights, edges, psnr, reconstruction

from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.parts.wan_vae.network import create
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict
from vidc.runtime.states import Buffers, States


@pytest.fixture(scope="module")
def vae(sizes):
    network = create(sizes.config.vae, torch.float32, "cpu")
    network.load_state_dict(random_state_dict(sizes.config.vae, 2, torch.float32))
    return network


def statistics_of(sizes):
    return Statistics(sizes.config.vae.latents_mean, sizes.config.vae.latents_std)


def through_components(sizes, vae, names, inputs, output):
    """What the streaming components make of blocks, one after the other."""
    made = sizes.config.vae_part.components(vae)
    engines = [EagerEngine(made[name]) for name in names]
    states = States((engine.signature for engine in engines), torch.device("cpu"))
    results = []
    for engine, values in zip(engines, inputs, strict=True):
        buffers = Buffers(engine.signature, torch.device("cpu"))
        buffers.set(values)
        engine.run(buffers, states)
        results.append(buffers[output].clone())
    return torch.cat(results, 1)


def test_a_clip_at_once_is_decoded_as_blocks_are(sizes, vae):
    latents = torch.randn(1, 6, *sizes.stream.latent, generator=torch.Generator().manual_seed(1))
    blocks = [{"latent": block} for block in latents.split(3, 1)]
    names = ("vae_decode_first", "vae_decode")
    expected = through_components(sizes, vae, names, blocks, "frames").transpose(1, 2)
    statistics = statistics_of(sizes)
    with torch.no_grad():
        made = decode(vae, statistics.restored(latents))
    assert made.shape[2] == frames_of(6)
    torch.testing.assert_close(made.clamp(-1, 1), expected, atol=1e-4, rtol=0)


def test_a_clip_at_once_is_encoded_as_blocks_are(sizes, vae):
    clip = torch.rand(1, 3, 21, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    blocks = [{"frames": block} for block in clip.transpose(1, 2).split([9, 12], 1)]
    names = ("vae_encode_first", "vae_encode")
    expected = through_components(sizes, vae, names, blocks, "latent")
    with torch.no_grad():
        posterior = encode(vae, clip, sizes.config.vae)
    statistics = statistics_of(sizes)
    found = statistics.normalized(posterior.mean)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(statistics.restored(found), posterior.mean, atol=1e-4, rtol=0)


def test_training_lowers_the_loss_and_leaves_what_the_next_stage_loads(sizes, tmp_path):
    options = Options(tmp_path, 2, steps=12, rate=1e-3, warmup=1, log_steps=3)
    run(options, sizes, Plan(batch=1, short_steps=100, latents=2), batches=1)
    rows = log.read(tmp_path / "log.jsonl")
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    vae, statistics = load_vae(tmp_path, sizes, "cpu")
    assert len(statistics.mean) == len(statistics.std) == 16
    assert all(math.isfinite(v) for v in statistics.mean)
    assert all(v > 0 for v in statistics.std)
    assert not any(parameter.requires_grad for parameter in vae.parameters())


def test_statistics_are_those_of_the_latents():
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(4, 3, 2, 16, 16, generator=generator)
    latents = latents * torch.tensor([2.0, 0.5, 1e-6]).view(1, 3, 1, 1, 1) + 1.0
    found = Statistics.of(latents)
    assert found.mean == pytest.approx((1, 1, 1), abs=0.1)
    assert found.std == pytest.approx((2, 0.5, 0.2), abs=0.1)
    normal = found.normalized(latents)
    assert normal.shape == (4, 2, 3, 16, 16)
    assert normal[:, :, 0].std() == pytest.approx(1, abs=0.01)


def test_a_divergence_is_that_of_the_posterior():
    normal = Posterior(torch.zeros(1, 2, 1, 4, 4), torch.zeros(1, 2, 1, 4, 4))
    assert float(normal.divergence()) == 0
    # Of a normal about 1 with deviation 1/2: (1 + 1/4 - 1 - 2 ln 1/2) / 2.
    other = Posterior(torch.ones(1), torch.full((1,), 2 * math.log(0.5)))
    assert float(other.divergence()) == pytest.approx((0.25 + 2 * math.log(2)) / 2)


def test_edges_see_a_lost_texture_and_not_a_shade():
    asked = torch.rand(1, 3, 5, 32, 32, generator=torch.Generator().manual_seed(1))
    flat = asked.mean((3, 4), keepdim=True).expand_as(asked)
    assert edges(flat - asked) > 0.3
    assert float(edges(torch.full_like(asked, 0.2))) == pytest.approx(0, abs=1e-6)
    lone = replace(Weights(), l1=0.0, edges=0.0, square=1.0)
    loss, square = reconstruction(flat, asked, lone)
    assert float(loss) == float(square)
    assert psnr(0.004) == pytest.approx(30)


def test_clips_to_train_on_are_of_the_training_split():
    for step in range(6):
        prompted, first, frames = for_vae(step, 4, 5, seed=1)
        assert frames == 17
        assert first % 4 == 0
        assert all(split_of_seed(clip.seed) is Split.TRAIN for clip in prompted.clips)
        assert any(len(clip.scenes) == 2 for clip in prompted.clips) == (step % 3 == 2)
