"""A bundle of GameNGen's world: diffusers' latents and pixels, and specs that it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from gamengen_models import actions_of, drawn, start_of

from vidc.compiler.validate.metrics import compare
from vidc.runtime import load
from vidc.runtime.manifest import read_manifest


@pytest.fixture
def world(worlds):
    return worlds("latent_world")


def test_engines_equal_diffusers_in_open_loop(world):
    oracle = world.made.world(start_of(world.model))
    with load(world.bundle) as loaded, loaded.session() as session:
        for index, action in enumerate(actions_of(world.model, 5)):
            session.spawn(oracle.past, actions=oracle.actions)
            session.act(action)
            noise = drawn(*session.spec.noise_shape, seed=index)
            expected = oracle.latent(action, [noise.view(session.spec.latent_shape)])
            assert compare(session.generate(noise), expected).relative_l2 < 1e-5
            shown = oracle.decode(expected).add(1).mul(127.5).round().clamp(0, 255)
            apart = session.decode(expected).permute(0, 3, 1, 2).int() - shown.int()
            assert apart.abs().max() <= 1


def test_actions_are_recorded_as_indices(vidc, world, tmp_path):
    actions = actions_of(world.model, 3)
    np.save(tmp_path / "indices.npy", np.array(actions))
    np.save(tmp_path / "rows.npy", np.eye(world.model.unet.actions)[actions])
    made = []
    for name in ("indices", "rows"):
        output = tmp_path / f"{name}.gif"
        options = ("--actions", str(tmp_path / f"{name}.npy"), "-o", str(output))
        assert vidc("run", str(world.bundle), *options)[0] == 0
        made.append(output.read_bytes())
    assert made[0] == made[1]


def test_a_spec_of_another_size_is_refused(world):
    manifest = read_manifest(world.bundle)
    signatures = {name: engine.signature for name, engine in manifest.engines.items()}
    manifest.spec.check(signatures)
    for changed in ({"past": 4}, {"video": (56, 64)}, {"guidance": 1.5}, {"past_noise": 0.1}):
        with pytest.raises(ValueError, match="has tensors"):
            replace(manifest.spec, **changed).check(signatures)
