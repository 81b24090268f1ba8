"""Checkpoints of DIAMOND agents: `csgo.pt` with the YAML files of its download."""

import pytest
import torch
import yaml
from diamond_models import ATARI, TABLES, pair

from vidc.exporters.families.world import World
from vidc.plugins.errors import BuildError


def load(made, path):
    part = made.model.part
    loaded = part.load(path, (), World.layouts(), False)
    return {name: tensor.load() for name, tensor in loaded.tensors.items()}


def write_configs(folder, name="csgo", **changes):
    """Writes the two YAML files of a model of ``TABLES``; changes are dotted names and values."""
    agent = {}
    for table, factor in (("denoiser", None), ("upsampler", 3)):
        sizes = TABLES[table]
        agent[table] = {
            "_target_": "models.diffusion.DenoiserConfig",
            "sigma_data": 0.5,
            "sigma_offset_noise": 0.1,
            "noise_previous_obs": table == "denoiser",
            "upsampling_factor": factor,
            "inner_model": {
                "img_channels": 3,
                "num_steps_conditioning": sizes.get("past", 1),
                "cond_channels": sizes["cond"],
                "depths": sizes["depths"],
                "channels": sizes["channels"],
                "attn_depths": [int(flag) for flag in sizes["attention"]],
            },
        }
    environment = {"train": {"id": name, "size": [27, 42]}, "num_actions": 5, "keymap": name}
    for kind, document in (("agent", agent), ("env", environment)):
        for dotted, value in changes.items():
            *path, last = dotted.split("__")
            target = document
            for key in path:
                target = target.get(key, {})
            if last in target:
                target[last] = value
        file = folder / "config" / kind / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(document))


def test_a_download_loads(tmp_path):
    made = pair()
    write_configs(tmp_path)
    found = load(made, made.save(tmp_path))
    expected = made.weights
    assert found.keys() == expected.keys() == made.model.part.shapes().keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def test_an_agent_s_other_networks_are_left_out(tmp_path):
    made = pair(**ATARI)
    path = tmp_path / "Breakout.pt"
    others = {"rew_end_model.lstm.weight": torch.ones(2), "actor_critic.conv.bias": torch.ones(2)}
    torch.save({**made.agent.state_dict(), **others}, path)
    assert load(made, path).keys() == made.model.part.shapes().keys()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_actions": 18}, "num_actions = 18, the preset 5"),
        ({"train__size": [64, 64]}, r"train\.size = \[64, 64\], the preset \[27, 42\]"),
        ({"denoiser__sigma_offset_noise": 0.3}, r"denoiser\.sigma_offset_noise = 0\.3"),
        ({"denoiser__inner_model__channels": [32, 32]}, r"inner_model\.channels = \[32, 32\]"),
        ({"denoiser__inner_model__attn_depths": [1, 1]}, "attn_depths"),
        ({"upsampler__upsampling_factor": 5}, r"upsampling_factor = 5, the preset 3"),
        ({"upsampler": None}, "upsampler = None"),
    ],
)
def test_refuses_config_of_another_model(tmp_path, changes, named):
    made = pair()
    write_configs(tmp_path, **changes)
    with pytest.raises(BuildError, match=rf"VIDC-CHECKPOINT-CONFIG.*{named}"):
        load(made, made.save(tmp_path))


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "b: 1\n", "\x00", "!!python/object:os.x {}\n"])
def test_refuses_file_that_is_no_config(tmp_path, text):
    made = pair()
    write_configs(tmp_path)
    (tmp_path / "config" / "agent" / "csgo.yaml").write_text(text)
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-CONFIG.*csgo\.yaml"):
        load(made, made.save(tmp_path))


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path):
    made = pair()
    write_configs(tmp_path, denoiser__sigma_offset_noise="1e-1")
    load(made, made.save(tmp_path))


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"denoiser": TABLES["denoiser"] | {"actions": 6}}, "denoiser.actions = 6, not 5"),
        ({"denoiser": TABLES["denoiser"] | {"cond": 64}}, "denoiser.cond = 64, not 32"),
        (
            {"upsampler": TABLES["upsampler"] | {"channels": [32, 64]}},
            r"upsampler.channels = \[32, 64\], not \[32, 32\]",
        ),
        ({"upsampler": {}, "upsample": {}}, "no upsampler"),
    ],
)
def test_refuses_another_game_s_checkpoint(tmp_path, tables, named):
    path = pair(**tables).save(tmp_path)
    with pytest.raises(BuildError, match=rf"VIDC-CHECKPOINT-MISMATCH.*{named}"):
        load(pair(), path)


def test_refuses_weights_that_are_not_finite(tmp_path):
    made = pair()
    made.agent.denoiser.inner_model.conv_in.weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-NONFINITE.*conv_in"):
        load(made, made.save(tmp_path))
