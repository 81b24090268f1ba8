import gamengen_models
import pytest
import torch
from latent_world_plain import LatentStream


@pytest.mark.parametrize("sampler", [{}, gamengen_models.GUIDED | gamengen_models.NOISED])
def test_latent_stream_makes_the_bundles_frames(sampler):
    """The same weights, noise and action give the same frames, up to one level of 8 bits."""
    made = gamengen_models.pair(sampler=sampler)
    unet, vae, _ = made.networks
    plain = LatentStream(made.model, made.networks, {"unet": unet, "decode": vae.decode})
    player = made.player
    session = player.program(player.resources)
    action = torch.eye(made.model.unet.actions)[3]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        plain.condition(action)
        session.condition(action)
        # Past latents of a new session are zeros; the stream's are, too.
        for _ in range(3):
            noise = torch.randn(session.spec.noise_shape, generator=generator)
            found, wanted = plain.step(noise), session.step(noise)
            assert found.shape == wanted.shape
            assert (found.int() - wanted.int()).abs().max() <= 1
        assert plain.step().shape == found.shape
        assert not plain.world.seen
