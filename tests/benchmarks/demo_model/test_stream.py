"""The training's streams beside sessions over the same weights."""

import pytest
import torch
from demo_model.stream import Layout, Streams
from random_transformer import random_weights

from vidc.compiler.validate.reference import part_engines
from vidc.exporters.models import with_weights
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import CausalVideo

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(sizes):
    weights = random_weights(sizes.config.transformer, seed=5)
    return with_weights(sizes.config.transformer_part.network("fp32"), weights)


@pytest.fixture(scope="module")
def inputs(sizes):
    generator, spec = torch.Generator().manual_seed(1), sizes.stream
    noise = torch.randn(5, 1, 7, spec.block, *spec.latent, generator=generator)
    return noise[0], noise[1:], torch.randn(1, 2, *spec.text, generator=generator)


def test_generated_blocks_are_those_of_a_session(sizes, model, inputs):
    """Four steps a block from the same noise, a switch after five blocks, as the ring wraps."""
    (clean, noise, embeds), spec = inputs, sizes.stream
    engines = part_engines(sizes.config.transformer_part, model)
    session = CausalVideo(Resources(spec, engines, CPU))
    session.prompt(embeds[:, 0])
    streams = Streams(Layout(range(7), switch=5), spec, CPU)
    found = streams.generate(model, clean, noise, spec.sigmas, embeds)
    for block in range(7):
        if block == 5:
            session.switch_prompt(embeds[:, 1])
        expected = session.generate(noise=noise[:, :, block])
        torch.testing.assert_close(found[:, block], expected, atol=1e-3, rtol=1e-4)


LAYOUTS = [Layout(range(7), switch=switch) for switch in (None, 1, 4, 6)]
LAYOUTS += [Layout(range(1)), *(Layout((0, *range(20, 26)), 3, switch) for switch in (None, 4))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_pass_has_the_flows_of_block_after_block(sizes, model, inputs, layout):
    """The ring wraps, streams begin late, and prompts switch before and after it is full."""
    count, known, level = len(layout.positions), layout.known, 0.8
    history, noise = 2 * inputs[0][:, :count], inputs[1][:, :, known:count]
    streams = Streams(layout, sizes.stream, CPU)
    read = streams.generate(model, history, noise, [level], inputs[2])
    assert torch.equal(read[:, :known], history[:, :known])
    flows = streams.flows(model, read, noise[0], torch.full(noise.shape[1:3], level), inputs[2])
    expected = (noise[0] - read[:, known:]) / level
    torch.testing.assert_close(flows, expected, atol=1e-4, rtol=1e-4)
