"""The training's forward and rollout beside a session over the same weights."""

from dataclasses import replace

import pytest
import torch
from demo.stream import Rollout, Transformer, clip_groups

from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.causal_wan.random_weights import random_weights
from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import CausalVideo

BLOCKS = 7
LEVELS = torch.tensor([1.0, 0.9, 0.5, 0.75, 0.2, 0.8, 0.6])


class NoDecoder:
    """Stands in for the decoder, which plays no part here."""

    def __init__(self, spec, frames: int) -> None:
        latent = TensorSpec("latent", (1, spec.block, *spec.latent), "float32", Role.INPUT)
        pixels = TensorSpec("frames", (1, frames, 3, *spec.video), "float32", Role.OUTPUT)
        self.signature = Signature((latent, pixels))

    def run(self, buffers, states) -> None:
        pass


@pytest.fixture(scope="module")
def model(sizes) -> CausalWan:
    network = CausalWan(sizes.config.transformer)
    network.load_state_dict(dict(random_weights(sizes.config.transformer, seed=5)))
    return network.requires_grad_(False)


@pytest.fixture(scope="module")
def inputs(sizes):
    generator = torch.Generator().manual_seed(1)
    spec = sizes.stream
    clean = torch.randn(1, BLOCKS, spec.block, *spec.latent, generator=generator)
    noise = torch.randn(4, *clean.shape, generator=generator)
    return clean, noise, torch.randn(1, 2, *spec.text, generator=generator)


def open_session(sizes, model, **changes):
    spec = replace(sizes.stream, **changes)
    made = sizes.config.transformer_part.components(model).items()
    engines = {name: EagerEngine(component) for name, component in made}
    engines["vae_decode_first"] = NoDecoder(spec, 4 * spec.block - 3)
    engines["vae_decode"] = NoDecoder(spec, 4 * spec.block)
    return CausalVideo(Resources(spec, engines, torch.device("cpu")))


@pytest.mark.parametrize("switch", [None, 1, 4, 5])
def test_one_forward_gives_the_flows_of_a_session(sizes, model, inputs, switch):
    """Seven blocks wrap the ring of four; a switch after five recomputes three."""
    clean, (noise, *_), embeds = inputs
    noisy = torch.lerp(clean, noise, LEVELS.view(1, -1, 1, 1, 1, 1))
    run = Transformer(model, sizes.stream, BLOCKS)
    groups = clip_groups(range(BLOCKS), sizes.stream, switch)
    known = len(groups.rows) - BLOCKS
    latents = torch.cat([clean[:, list(groups.rows[:known])], noisy], 1)
    levels = torch.cat([torch.zeros(1, known), LEVELS[None]], 1)
    flows, _ = run(latents, levels, groups, run.text(embeds), flow_from=known)
    for block in range(BLOCKS):
        level = float(LEVELS[block])
        session = open_session(sizes, model, timesteps=(1000 * level,), sigmas=(level,))
        session.prompt(embeds[:, 0])
        for past in range(block + 1):
            if past == switch:
                session.switch_prompt(embeds[:, 1])
            if past < block:
                session.remember(clean[:, past])
        # One step takes the latent along the flow by the share of noise.
        expected = (noisy[:, block] - session.generate(noisy[None, :, block])) / level
        torch.testing.assert_close(flows[:, block], expected, atol=2e-4, rtol=0)


def test_a_rollout_is_a_session(sizes, model, inputs):
    """Four steps a block from the same noise, a switch after five blocks."""
    _, noise, embeds = inputs
    run = Transformer(model, sizes.stream, BLOCKS)
    rollout, session = Rollout(run, run.text(embeds)), open_session(sizes, model)
    session.prompt(embeds[:, 0])
    for block in range(BLOCKS):
        if block == 5:
            session.switch_prompt(embeds[:, 1])
            rollout.switch_prompt(block)
        made = rollout.generate(noise[:, :, block], sizes.stream.sigmas, block)
        torch.testing.assert_close(made, session.generate(noise[:, :, block]), atol=1e-3, rtol=1e-4)
        rollout.remember(made, block)


def test_other_histories_give_other_flows(sizes, model, inputs):
    clean, (noise, *_), embeds = inputs
    run = Transformer(model, sizes.stream, BLOCKS)

    def last(positions, switch=None):
        groups = clip_groups(positions, sizes.stream, switch, len(positions) - 1)
        rows = [positions[row] for row in groups.rows]
        levels = torch.zeros(1, len(rows))
        levels[:, -1] = 1.0
        latents = torch.cat([clean[:, rows[:-1]], noise[:, -1:]], 1)
        return run(latents, levels, groups, run.text(embeds), flow_from=len(rows) - 1)[0]

    whole = last([0, 1, 2, 3, 4, 5, 6])
    assert (whole - last([1, 2, 3, 4, 5, 6])).abs().max() > 1e-2, "the sink is seen"
    assert (whole - last([0, 6])).abs().max() > 1e-2, "the window is seen"
    assert (last([0, 1, 2, 3, 4, 5, 6], 6) - last([0, 1, 2, 3, 4, 5, 6], 5)).abs().max() > 1e-3
