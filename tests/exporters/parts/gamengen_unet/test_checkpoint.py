"""Folders of GameNGen-repro: networks of diffusers and an embedding of actions."""

import json

import gamengen_models
import gamengen_oracle as oracle
import pytest
import torch
from gamengen_models import model_of
from safetensors.torch import load_file, save_file

from vidc.compiler.build.load import Load
from vidc.compiler.cli.sources import SourceOptions
from vidc.exporters.families.latent_world import LatentWorld
from vidc.plugins.errors import BuildError, UsageError

EMBEDDING = "action_embedding_model.safetensors"
DECODER = "trained_vae_decoder.pth"


@pytest.fixture
def made():
    return gamengen_models.pair()


def load(model, folder, group="unet"):
    model, sources = SourceOptions(folder).resolve(model)
    loaded = model.parts[group].load(
        sources.checkpoints[group], (), LatentWorld.layouts(), ema=False
    )
    return {name: tensor.load() for name, tensor in loaded.tensors.items()}, loaded.provenance


def test_a_download_loads(made, tmp_path):
    made.save(tmp_path)
    for group, part in made.model.parts.items():
        found, provenance = load(made.model, tmp_path, group)
        expected = made.weights(part)
        assert found.keys() == expected.keys() == part.shapes().keys()
        assert all(found[name].equal(expected[name]) for name in expected)
        assert (EMBEDDING in provenance["files"]) == (group == "unet")


def test_a_vae_with_old_names_of_attention_loads(made, tmp_path):
    path = made.save(tmp_path) / "vae" / "diffusion_pytorch_model.safetensors"
    names = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = {}
    for name, tensor in load_file(path).items():
        for new, old in names.items():
            name = name.replace(f"attentions.0.{new}.", f"attentions.0.{old}.")
        tensors[name] = tensor[..., None, None] if "proj_attn.weight" in name else tensor
    assert len({name for name in tensors if "query" in name}) == 4
    save_file(tensors, path)
    found, _ = load(made.model, tmp_path, "vae")
    expected = made.weights(made.model.vae_part)
    assert all(found[name].equal(expected[name]) for name in expected)


def test_a_tuned_decoder_replaces_the_vae_s(made, tmp_path):
    made.save(tmp_path)
    tuned = gamengen_models.Pair(made.model, seed=9)
    torch.save(tuned.networks[1].decoder.state_dict(), tmp_path / DECODER)
    found, provenance = load(made.model, tmp_path, "vae")
    expected = made.weights(made.model.vae_part)
    expected |= {n: t for n, t in tuned.weights(made.model.vae_part).items() if "decoder." in n}
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)
    assert DECODER in provenance["files"]


def test_refuses_another_vae_s_decoder(made, tmp_path):
    made.save(tmp_path)
    other = gamengen_models.pair(vae={"channels": [32, 32, 64, 96]})
    torch.save(other.networks[1].decoder.state_dict(), tmp_path / DECODER)
    with pytest.raises(
        BuildError, match=r"VIDC-CHECKPOINT-MISMATCH.*vae\.channels ends with 96, not 64"
    ):
        load(made.model, tmp_path, "vae")


def test_files_beside_the_networks_decide_the_key(made, tmp_path):
    made.save(tmp_path)

    def files(part):
        stage = Load(part, LatentWorld, "fp32", tmp_path / part.group)
        return {*stage.key().files.values()}

    assert tmp_path / EMBEDDING in files(made.model.unet_part)
    before = files(made.model.vae_part)
    torch.save({}, tmp_path / DECODER)
    assert files(made.model.vae_part) - before == {tmp_path / DECODER}


@pytest.mark.parametrize(
    ("table", "settings", "named"),
    [
        ("model", {"past": 5}, r"model\.past = 5, not 3|in_channels = 24, the preset 16"),
        ("model", {"buckets": 4}, "num_class_embeds = 4, the preset 10"),
        ("model", {"heads": 8}, "attention_head_dim = 8, the preset 4"),
        ("model", {"action_dim": 64}, "cross_attention_dim = 64, the preset 32"),
        ("vae", {"layers": 2}, "layers_per_block = 2, the preset 1"),
    ],
)
def test_refuses_config_of_another_model(made, tmp_path, table, settings, named):
    gamengen_models.pair(**{table: settings}).save(tmp_path)
    with pytest.raises(BuildError, match=rf"VIDC-CHECKPOINT-CONFIG.*({named})"):
        load(made.model, tmp_path)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"past": 5}, r"model\.past = 5, not 3"),
        ({"buckets": 4}, r"model\.buckets = 4, not 10"),
        ({"action_dim": 64}, r"model\.action_dim = 64, not 32"),
        ({"channels": [64, 64, 64, 64]}, r"model\.channels begins with 64, not 32"),
    ],
)
def test_refuses_weights_of_another_model(made, tmp_path, settings, named):
    gamengen_models.pair(model=settings).save(tmp_path)
    (tmp_path / "unet" / "config.json").unlink()
    with pytest.raises(BuildError, match=rf"VIDC-CHECKPOINT-MISMATCH.*{named}"):
        load(made.model, tmp_path)


def test_refuses_another_game_s_actions(made, tmp_path):
    gamengen_models.pair(model={"actions": 7}).save(tmp_path)
    with pytest.raises(
        BuildError, match=r"VIDC-CHECKPOINT-MISMATCH.*\[7, 32\], expected .*\[5, 32\]"
    ):
        load(made.model, tmp_path)
    load(model_of(model={"actions": 7}), tmp_path)


def test_refuses_another_schedule(made, tmp_path):
    made.save(tmp_path)
    path = tmp_path / "noise_scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**oracle.scheduler().config, "prediction_type": "epsilon"}))
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-CONFIG.*prediction_type = epsilon"):
        load(made.model, tmp_path)


def test_refuses_a_download_without_its_actions(made, tmp_path):
    (made.save(tmp_path) / EMBEDDING).unlink()
    with pytest.raises(UsageError, match=rf"VIDC-CHECKPOINT-MISSING.*{EMBEDDING}"):
        load(made.model, tmp_path)


@pytest.mark.parametrize("name", [EMBEDDING, "unet/diffusion_pytorch_model.safetensors"])
def test_refuses_weights_that_are_not_finite(made, tmp_path, name):
    path = made.save(tmp_path) / name
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, path)
    with pytest.raises(BuildError, match="VIDC-CHECKPOINT-NONFINITE"):
        load(made.model, tmp_path)


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"model": {"channels": [32, 64]}}, r"model\.channels"),
        ({"model": {"heads": 5}}, r"model\.channels has 32"),
        ({"frames": {"height": 60}}, r"frames\.height = 60 is not a multiple of 8"),
        ({"frames": {"height": 8, "width": 8}}, "frames of 8x8"),
        ({"sampler": {"steps": 0}}, r"sampler\.steps = 0"),
        ({"sampler": {"guidance": 0.5}}, r"sampler\.guidance = 0\.5"),
        ({"sampler": {"zeroed": 4}}, r"sampler\.zeroed = 4 with sampler\.guidance = 1"),
        ({"sampler": {"zeroed": 13, "guidance": 2.0}}, r"sampler\.zeroed = 13, and .* 12 channels"),
        ({"sampler": {"past_noise": 0.8}}, r"sampler\.past_noise = 0\.8 is above 0\.7"),
    ],
)
def test_refuses_settings(tables, named):
    with pytest.raises(UsageError, match=rf"VIDC-CONFIG-SIZES.*{named}"):
        model_of(**tables)
