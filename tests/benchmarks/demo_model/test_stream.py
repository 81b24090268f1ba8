"""The training's streams beside sessions over the same weights."""

from dataclasses import replace

import pytest
import torch
from demo_model.stream import Angles, Stream
from demo_model.unrolled import Unrolled, segments
from torch import Tensor

from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.causal_wan.random_weights import random_weights
from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import CausalVideo

BLOCKS = 7
LEVELS = (1.0, 0.9, 0.5, 0.75, 0.2, 0.8, 0.6)


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


def open_stream(sizes, model, embeds):
    return Stream(model, embeds, Angles(sizes.stream, torch.device("cpu")), sizes.stream)


def test_generated_blocks_are_those_of_a_session(sizes, model, inputs):
    """Four steps a block from the same noise, a switch after five blocks."""
    _, noise, embeds = inputs
    stream, session = open_stream(sizes, model, embeds), open_session(sizes, model)
    session.prompt(embeds[:, 0])
    for block in range(BLOCKS):
        if block == 5:
            session.switch_prompt(embeds[:, 1])
            stream.switch_prompt(block)
        made = stream.generate(noise[:, :, block], sizes.stream.sigmas, block)
        torch.testing.assert_close(made, session.generate(noise[:, :, block]), atol=1e-3, rtol=1e-4)
        stream.remember(made, block)


LAYOUTS = [(range(1), 0, None), (range(7), 0, None), (range(7), 0, 1), (range(7), 0, 4)]
LAYOUTS += [(range(7), 0, 6), ((0, *range(20, 26)), 3, None), ((0, *range(20, 26)), 3, 4)]


@pytest.mark.parametrize(("positions", "known", "switch"), LAYOUTS)
def test_a_stream_in_one_pass_has_the_flows_and_gradients_of_block_after_block(
    sizes, model, inputs, positions, known, switch
):
    """The ring wraps, streams begin late, and prompts switch before and after it is full."""
    clean, (noise, *_), embeds = inputs
    clean = clean[:, : len(positions)]
    levels = torch.tensor([LEVELS[: len(positions) - known]])
    share = levels[..., None, None, None, None]
    noisy = torch.lerp(clean[:, known:], noise[:, known : len(positions)], share)
    angles = Angles(sizes.stream, torch.device("cpu"))

    def in_turn(history: Tensor, embeds: Tensor) -> Tensor:
        stream, flows = open_stream(sizes, model, embeds), []
        for index, block in enumerate(positions):
            if index == switch:
                stream.switch_prompt(block)
            if index >= known:
                at = index - known
                flows.append(stream.flow(noisy[:, at], levels[:, at], block))
            if index + 1 < len(positions):
                stream.remember(history[:, index], block)
        return torch.stack(flows, 1)

    def at_once(history: Tensor, embeds: Tensor) -> Tensor:
        made = segments(positions, known, switch, sizes.stream)
        unrolled = Unrolled(made, angles, sizes.stream)
        return unrolled.flows(model, unrolled.latents(history, noisy), levels, embeds)

    found = []
    for run in (in_turn, at_once):
        arguments = clean.clone().requires_grad_(), embeds.clone().requires_grad_()
        flows = run(*arguments)
        flows.square().sum().backward()
        found.append((flows.detach(), *(each.grad for each in arguments)))
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
