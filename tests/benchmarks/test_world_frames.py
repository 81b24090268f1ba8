import diamond_models
import pytest
import torch
from world_frames import PlainStream


def test_plain_stream_makes_the_bundles_frames():
    """The same weights, noise and action give the same frames, up to one level of 8 bits."""
    made = diamond_models.pair()
    calls = {n: network.before_truncation for n, network in made.agent.named_children()}
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


def test_a_stream_that_takes_no_prompts_refuses_them():
    made = diamond_models.pair()
    plain = PlainStream(made.model, made.agent, {}, torch.float32)
    with pytest.raises(NotImplementedError):
        plain.prompt(torch.zeros(1))
