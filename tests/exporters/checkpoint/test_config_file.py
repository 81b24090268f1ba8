"""Configs beside tensors in diffusers' folders are compared with the preset, or refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline
from wan_transformer import wan_transformer

from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.presets import load_preset
from vidc.exporters.families.causal_video import CausalVideo
from vidc.plugins.errors import BuildError


@pytest.fixture(scope="module")
def model() -> CausalVideo:
    found = load_preset("tiny").model
    assert isinstance(found, CausalVideo)
    return found


@pytest.fixture(scope="module")
def saved(model: CausalVideo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline as diffusers saves it, without its text encoder; not to be changed."""
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0
    )
    folder = tmp_path_factory.mktemp("pipeline")
    WanPipeline(
        tokenizer=None,
        text_encoder=None,
        transformer=wan_transformer(model.transformer),
        vae=AutoencoderKLWan(base_dim=model.vae.base_dim),
        scheduler=scheduler,
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def pipeline(saved: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return shutil.copytree(saved, tmp_path / "pipeline")


def resolve(model: CausalVideo, checkpoint: Path, vae: Path | None = None) -> None:
    SourceOptions(checkpoint, {} if vae is None else {"vae": vae}).resolve(model)


def refused(model: CausalVideo, checkpoint: Path, vae: Path | None = None) -> str:
    with pytest.raises(BuildError) as caught:
        resolve(model, checkpoint, vae)
    assert caught.value.code == "VIDC-CHECKPOINT-CONFIG"
    return caught.value.message


def change(path: Path, **settings: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_pipeline_of_the_model_itself(model: CausalVideo, saved: Path) -> None:
    resolve(model, saved)
    resolve(model, saved / "transformer", saved / "vae")


TRANSFORMER, VAE = "transformer/config.json", "vae/config.json"
SCHEDULER = "scheduler/scheduler_config.json"


@pytest.mark.parametrize(
    ("file", "settings", "said"),
    [
        (TRANSFORMER, {"num_attention_heads": 6}, "num_attention_heads = 6, the preset 3"),
        (TRANSFORMER, {"attention_head_dim": 16}, "attention_head_dim = 16, the preset 32"),
        (TRANSFORMER, {"eps": 1e-5}, "eps = 1e-05, the preset 1e-06"),
        (TRANSFORMER, {"patch_size": [1, 1, 4]}, "patch_size = [1, 1, 4]"),
        (TRANSFORMER, {"qk_norm": "rms_norm"}, "qk_norm = rms_norm"),
        (TRANSFORMER, {"image_dim": 1280}, "image_dim = 1280, which vidc does not know"),
        (TRANSFORMER, {"pos_embed_seq_len": 514}, "pos_embed_seq_len = 514"),
        (TRANSFORMER, {"_class_name": "WanVACETransformer3DModel"}, "is of class WanVACE"),
        (TRANSFORMER, {"_class_name": None}, "is of class None"),
        (TRANSFORMER, {"num_layers": "2"}, "num_layers = 2, the preset 2"),
        (VAE, {"latents_mean": [0.0] * 16}, "latents_mean = [0.0, "),
        (VAE, {"latents_std": [1.0] * 15}, "latents_std = [1.0, "),
        (VAE, {"is_residual": True}, "is_residual = True, which vidc does not know"),
        (VAE, {"scale_factor_spatial": 16}, "scale_factor_spatial = 16, the preset 8"),
        (VAE, {"_class_name": "AutoencoderKL"}, "is of class AutoencoderKL, expected"),
        (SCHEDULER, {"flow_shift": 3.0}, "flow_shift = 3.0, the preset 5.0"),
        (SCHEDULER, {"prediction_type": "epsilon"}, "prediction_type = epsilon"),
        (SCHEDULER, {"num_train_timesteps": 500}, "num_train_timesteps = 500"),
        (
            "model_index.json",
            {"transformer_2": ["diffusers", "WanTransformer3DModel"]},
            "transformer_2 = ['diffusers', 'WanTransformer3DModel']",
        ),
        ("model_index.json", {"boundary_ratio": 0.9}, "boundary_ratio = 0.9"),
        ("model_index.json", {"expand_timesteps": True}, "expand_timesteps = True"),
    ],
)
def test_refuses_what_contradicts_the_preset(
    model: CausalVideo, pipeline: Path, file: str, settings: dict[str, Any], said: str
) -> None:
    change(pipeline / file, **settings)
    message = refused(model, pipeline)
    assert str(pipeline / file) in message
    assert said in message


@pytest.mark.parametrize("content", ["{", "[]", "null", "[" * 100_000, '{"_class_name": []}'])
def test_refuses_a_config_that_cannot_be_read(
    model: CausalVideo, pipeline: Path, content: str
) -> None:
    (pipeline / TRANSFORMER).write_text(content)
    assert str(pipeline / TRANSFORMER) in refused(model, pipeline)


def test_preset_with_the_scheduler_s_shift(model: CausalVideo, pipeline: Path) -> None:
    change(pipeline / SCHEDULER, flow_shift=3)
    resolve(replace(model, sampler=replace(model.sampler, shift=3.0)), pipeline)


def test_config_of_another_model_beside_a_file(model: CausalVideo, pipeline: Path) -> None:
    """Wan's own download has the transformer's config beside ``Wan2.1_VAE.pth``."""
    weights = pipeline / "transformer" / "diffusion_pytorch_model.safetensors"
    vae = pipeline / "transformer" / "Wan2.1_VAE.pth"
    torch.save({}, vae)
    resolve(model, weights, vae)
    change(pipeline / TRANSFORMER, num_attention_heads=6)
    assert "num_attention_heads" in refused(model, weights, vae)


ORIGINAL = {
    "_class_name": "WanModel",
    "_diffusers_version": "0.30.0",
    "dim": 96,
    "eps": 1e-06,
    "ffn_dim": 192,
    "freq_dim": 32,
    "in_dim": 16,
    "model_type": "t2v",
    "num_heads": 3,
    "num_layers": 2,
    "out_dim": 16,
    "text_len": 16,
}


@pytest.mark.parametrize("settings", [{}, {"num_heads": 6}, {"text_len": 512}, {"in_dim": 36}])
def test_config_of_the_original_transformer(
    model: CausalVideo, pipeline: Path, settings: dict[str, Any]
) -> None:
    (pipeline / TRANSFORMER).write_text(json.dumps(ORIGINAL | settings))
    check: Callable[..., Any] = refused if settings else resolve
    said = check(model, pipeline / "transformer", pipeline / "vae")
    assert all(name in said for name in settings)
