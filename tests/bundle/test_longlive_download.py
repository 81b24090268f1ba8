"""LongLive's preset from exactly the files that LongLive's instructions download, in small."""

import av
import pytest
import torch
from random_transformer import random_weights
from safetensors.torch import load_file
from tiny_umt5 import tiny_tokenizer, tiny_umt5
from wan_download import save_longlive, save_wan

from vidc.exporters.parts.wan_vae.random_weights import random_state_dict
from vidc.runtime.manifest import read_manifest

PRESET = """
description = "LongLive in small"
extends = "longlive-1.3b"
[model]
dim = 48
ffn_dim = 96
heads = 2
layers = 2
freq_dim = 32
text_len = 16
text_dim = 32
[vae]
base_dim = 8
res_blocks = 1
[stream]
height = 32
width = 48
window = 8
[validate]
blocks = 8
switch_after = 5
"""
RANK = 4


@pytest.fixture(scope="module")
def download(tmp_path_factory, project):
    """The folder in which the downloads lie, and the weights that base and LoRA make."""
    model = project.resolve()[0].model
    root = tmp_path_factory.mktemp("longlive")
    (root / "small.toml").write_text(PRESET)
    vae = random_state_dict(model.vae, 1, torch.float32)
    wan = root / "wan_models" / "Wan2.1-T2V-1.3B"
    save_wan(wan, vae, tiny_umt5(), tiny_tokenizer())
    weights = random_weights(model.transformer, seed=1)
    return root, save_longlive(root / "longlive_models" / "models", weights, RANK)


def test_builds_and_runs(download, project, vidc, tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    root, merged = download
    models, wan = root / "longlive_models" / "models", root / "wan_models" / "Wan2.1-T2V-1.3B"
    bundle, video = tmp_path / "bundle", tmp_path / "v.mp4"
    status, _, err = vidc(
        "build", str(root / "small.toml"), "--gpu", "cpu", "-o", str(bundle),
        "--checkpoint", str(models / "longlive_base.pt"), "--lora", str(models / "lora.pt"),
        "--vae", str(wan / "Wan2.1_VAE.pth"), "--text-encoder", str(wan),
    )  # fmt: skip
    assert status == 0, err
    transformer = (
        "transformer: files longlive_base.pt, layout original Wan transformer, section generator; "
        "LoRA files lora.pt, layout original Wan transformer, modules 20, ranks 4, scales 1, "
        "section generator_lora"
    )
    lines = err.splitlines()
    assert transformer in lines
    assert "vae: files Wan2.1_VAE.pth, layout original Wan VAE" in lines
    text = "text encoder: files models_t5_umt5-xxl-enc-bf16.pth, layout original Wan text encoder"
    assert text in lines
    assert "no --text-encoder" not in err

    built = load_file(bundle / "weights" / "transformer.safetensors")
    assert built.keys() == merged.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(built[name], tensor, rtol=1e-6, atol=1e-6)
    manifest = read_manifest(bundle)
    assert manifest.preset == "small"
    assert manifest.weights["transformer"].source["section"] == "generator"
    report = (bundle / "report.html").read_text()
    assert "section generator_lora" in report
    assert "texts or embeddings" in report

    prompt = " ".join(["a cat runs over the grass"] * 5)
    status, _, err = vidc("run", str(bundle), "--prompt", prompt, "--blocks", "2", "-o", str(video))
    assert status == 0, err
    assert "warning: the prompt is cut after 15 of " in err
    with av.open(str(video)) as opened:
        assert sum(1 for _ in opened.decode(video=0)) == 21
    _, out, _ = vidc("inspect", str(bundle))
    assert transformer.partition(": ")[2] in out


def test_says_that_there_is_no_text_encoder(download, project, vidc, tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    root, _ = download
    models, wan = root / "longlive_models" / "models", root / "wan_models" / "Wan2.1-T2V-1.3B"
    status, _, err = vidc(
        "build", str(root / "small.toml"), "--gpu", "cpu", "-o", str(tmp_path / "b"), "--plan",
        "--checkpoint", str(models / "longlive_base.pt"), "--vae", str(wan / "Wan2.1_VAE.pth"),
    )  # fmt: skip
    assert status == 0, err
    assert "no --text-encoder is given: the bundle will take embeddings as prompts" in err
