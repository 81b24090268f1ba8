"""The training's streams beside sessions over the same weights."""

import pytest
import torch
from demo_model.stream import Streams

from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.causal_wan.random_weights import random_weights
from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import CausalVideo

BLOCKS = 7
CPU = torch.device("cpu")


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


def test_generated_blocks_are_those_of_a_session(sizes, model, inputs):
    """Four steps a block from the same noise, a switch after five blocks, as the ring wraps."""
    (clean, noise, embeds), spec = inputs, sizes.stream
    made = sizes.config.transformer_part.components(model).items()
    engines = {name: EagerEngine(component) for name, component in made}
    engines["vae_decode_first"] = NoDecoder(spec, 4 * spec.block - 3)
    engines["vae_decode"] = NoDecoder(spec, 4 * spec.block)
    session = CausalVideo(Resources(spec, engines, CPU))
    session.prompt(embeds[:, 0])
    streams = Streams(range(BLOCKS), 0, 5, spec, CPU)
    found, _ = streams.generate(model, embeds, clean, clean, noise, spec.sigmas)
    for block in range(BLOCKS):
        if block == 5:
            session.switch_prompt(embeds[:, 1])
        expected = session.generate(noise[:, :, block])
        torch.testing.assert_close(found[:, block], expected, atol=1e-3, rtol=1e-4)


LAYOUTS = [(range(1), 0, None), (range(7), 0, None), (range(7), 0, 1), (range(7), 0, 4)]
LAYOUTS += [(range(7), 0, 6), ((0, *range(20, 26)), 3, None), ((0, *range(20, 26)), 3, 4)]


@pytest.mark.parametrize(("positions", "known", "switch"), LAYOUTS)
def test_all_blocks_in_one_pass_have_the_flows_of_block_after_block(
    sizes, model, inputs, positions, known, switch
):
    """The ring wraps, streams begin late, and prompts switch before and after it is full."""
    clean, noise, embeds = (inputs[0][:, : len(positions)], inputs[1], inputs[2])
    noise, level = noise[:, :, known : len(positions)], 0.8
    streams = Streams(positions, known, switch, sizes.stream, CPU)
    made, read = streams.generate(model, embeds, clean, 2 * clean, noise, [level])
    assert torch.equal(read[:, :known], 2 * clean[:, :known])
    levels = torch.full(noise.shape[1:3], level)
    flows = streams.flows(model, read, noise[0], levels, embeds)
    expected = (noise[0] - made[:, known:]) / level
    torch.testing.assert_close(flows, expected, atol=1e-4, rtol=1e-4)
