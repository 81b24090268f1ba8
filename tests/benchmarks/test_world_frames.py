from collections import Counter

import diamond_models
import oasis_models
import pytest
import torch
from world_frames import PlainStream
from world_recomputed import RecomputedStream


class Counting:
    """Compiles calls without inductor and counts the graphs of each."""

    def __init__(self):
        self.graphs = Counter()

    def __call__(self, name, call):
        def backend(graph, _):
            self.graphs[name] += 1
            return graph.forward

        return torch.compile(call, backend=backend, dynamic=False, fullgraph=True)


def test_plain_stream_makes_the_bundles_frames():
    """The same weights, noise and action give the same frames, up to one level of 8 bits.

    Each network is compiled once.
    """
    made, compiled = diamond_models.pair(), Counting()
    made.agent.to(memory_format=torch.channels_last)
    calls = {n: compiled(n, net.before_truncation) for n, net in made.agent.named_children()}
    plain = PlainStream(made.model, made.agent, calls, torch.float32)
    player = made.player
    session = player.program(player.resources)
    action = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        plain.condition(action)
        session.condition(action)
        # Past frames of a new session are gray; the stream's are, too.
        for _ in range(3):
            noise = torch.randn(session.spec.noise_shape, generator=generator)
            found, wanted = plain.step(noise), session.step(noise)
            assert found.shape == wanted.shape
            assert (found.int() - wanted.int()).abs().max() <= 1
        plain.step()
    assert compiled.graphs == {"denoiser": 1, "upsampler": 1}


def test_a_stream_that_takes_no_prompts_refuses_them():
    made = diamond_models.pair()
    plain = PlainStream(made.model, made.agent, {}, torch.float32)
    with pytest.raises(NotImplementedError):
        plain.prompt(torch.zeros(1))


def test_recomputed_stream_makes_the_oracles_frames():
    """After a window of empty frames, with the calls of the network compiled as a whole."""
    made = oasis_models.pair()
    compiled = Counting()
    transformer = compiled("transformer", made.transformer.forward)
    like = next(made.transformer.parameters())
    plain = RecomputedStream(made.model, transformer, compiled("vae", made.vae.decode), like)
    world = made.world()
    shape, inputs = made.model.spec()["latent"], made.model.transformer.actions
    for _ in range(made.model.stream.window - 1):
        world.remember(torch.zeros(shape), torch.zeros(inputs))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for action in oasis_models.actions_of(made.model, 2):
            noise = torch.randn(1, *shape, generator=generator)
            plain.condition(action)
            latent = plain.generate(noise=noise)
            expected = world.recomputed(noise[0], action)
            assert torch.allclose(latent[0], expected, rtol=1e-4, atol=1e-5)
            world.remember(expected, action)
        height, width = made.model.stream.height, made.model.stream.width
        assert plain.step().shape == (1, height, width, 3)
    assert compiled.graphs == {"transformer": 1, "vae": 1}
    with pytest.raises(NotImplementedError):
        plain.prompt(torch.zeros(1))
