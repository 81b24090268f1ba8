"""A bundle of Oasis's world: the oracle's frames, images as a start, and its two checkpoints."""

import pytest
import torch
from oasis_models import actions_of, images_of
from PIL import Image

from vidc.runtime import load


@pytest.fixture
def world(worlds):
    return worlds("oasis")


def test_engines_equal_the_oracle_in_closed_loop(world):
    images, oracle = images_of(world.model, 1), world.made.world()
    image = images.permute(0, 3, 1, 2).float() / 127.5 - 1
    oracle.remember(world.made.vae.encode(image)[0], torch.zeros(5))
    with load(world.bundle) as loaded, loaded.session() as session:
        session.start(images)
        noise = torch.Generator().manual_seed(1)
        for action in actions_of(world.model, 6):
            drawn = torch.randn(session.spec.noise_shape, generator=noise)
            session.act(action)
            picture = session.step(drawn)[0]
            expected = oracle.cached(drawn.reshape(session.spec.latent), action)
            oracle.remember(expected, action)
            exact = world.made.vae.decode(expected[None])[0].add(1).mul(127.5).clamp(0, 255)
            assert (picture.permute(2, 0, 1) - exact).abs().max() < 1


def test_an_image_is_a_start(vidc, world, tmp_path):
    Image.fromarray(images_of(world.model, 1)[0].numpy()).save(tmp_path / "start.png")
    made = []
    for options in (("--start", str(tmp_path / "start.png")), ()):
        output = tmp_path / f"{len(made)}.gif"
        assert vidc("run", str(world.bundle), "--frames", "3", *options, "-o", str(output))[0] == 0
        made.append(output.read_bytes())
    assert made[0] != made[1]


def test_a_part_without_its_checkpoint_is_refused(vidc, world, tmp_path):
    status, _, err = vidc("build", *world.source[:5], "-o", str(tmp_path / "no"))
    assert (status, "VIDC-BUILD-SOURCES" in err, "--vae" in err) == (2, True, True)
