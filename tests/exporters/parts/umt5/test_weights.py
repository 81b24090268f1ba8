from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.umt5.folder import open_text_encoder
from vidc.exporters.parts.umt5.weights import load_encoder_weights
from vidc.plugins.errors import VidcError

OWN, SHARED = "encoder.embed_tokens.weight", "shared.weight"


def load(folder: Path) -> dict[str, Tensor]:
    found = open_text_encoder(folder, 32)
    weights = load_encoder_weights(found.checkpoint, found.config, CausalVideo.layouts())
    return {name: tensor.load() for name, tensor in weights.tensors.items()}


def rewrite(folder: Path, changes: dict[str, Tensor]) -> None:
    save_file(load_file(folder / "model.safetensors") | changes, folder / "model.safetensors")


def test_names_each_tensor_once(saved: Path, umt5: Any) -> None:
    assert SHARED in load_file(saved / "model.safetensors")
    tensors, expected = load(saved), umt5.state_dict()
    del expected[SHARED]

    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_reads_shards_and_torch_files(tmp_path: Path, folder: Path, umt5: Any) -> None:
    expected = load(folder)
    (folder / "model.safetensors").unlink()
    torch.save(umt5.state_dict(), folder / "pytorch_model.bin")
    from_torch = load(folder)
    umt5.save_pretrained(folder, max_shard_size="20KB")
    assert open_text_encoder(folder, 32).checkpoint.name == "model.safetensors.index.json"

    for tensors in (from_torch, load(folder)):
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_drops_the_second_name_and_the_decoder(folder: Path) -> None:
    expected = load(folder)
    embedding = expected[OWN].clone()
    rewrite(
        folder,
        {OWN: embedding, "decoder.block.0.x": torch.ones(2), "lm_head.weight": embedding + 1},
    )

    assert load(folder).keys() == expected.keys()


def test_refuses_two_different_embeddings(folder: Path) -> None:
    rewrite(folder, {OWN: load(folder)[OWN] + 1})

    with pytest.raises(VidcError, match=r"VIDC-CHECKPOINT-MISMATCH.*different values"):
        load(folder)


def test_refuses_other_sizes(folder: Path) -> None:
    rewrite(folder, {"encoder.final_layer_norm.weight": torch.ones(31)})

    with pytest.raises(VidcError, match=r"VIDC-CHECKPOINT-MISMATCH.*'UMT5 text encoder'.*final"):
        load(folder)


def test_refuses_nan(folder: Path) -> None:
    rewrite(folder, {"encoder.final_layer_norm.weight": torch.full([32], torch.nan)})

    with pytest.raises(VidcError, match="VIDC-CHECKPOINT-NONFINITE"):
        load(folder)


@pytest.mark.parametrize("prefix", ["", "text_encoders.umt5xxl.transformer."])
def test_scaled_fp8_in_one_file(folder: Path, prefix: str) -> None:
    exact, stored = load(folder), {}
    for name, tensor in exact.items():
        stored[name] = tensor
        if "Attention" in name and tensor.shape == (32, 32):
            scale = tensor.abs().max() / 448
            stored[name] = (tensor / scale).to(torch.float8_e4m3fn)
            stored[f"{name.removesuffix('.weight')}.scale_weight"] = scale
            exact[name] = stored[name].float() * scale
    stored |= {"scaled_fp8": torch.empty(0, dtype=torch.float8_e4m3fn)}
    stored |= {"spiece_model": torch.zeros(5, dtype=torch.uint8)}
    state = {f"{prefix}{name}": tensor for name, tensor in stored.items()}
    if prefix:
        state["model.diffusion_model.head.modulation"] = torch.zeros(1, 2, 8)
    file = folder / "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
    save_file(state, file)
    found = open_text_encoder(file, 32)
    assert found.config == open_text_encoder(folder, 32).config
    weights = load_encoder_weights(file, found.config, CausalVideo.layouts())

    assert weights.tensors.keys() == exact.keys()
    assert all(torch.equal(weights.tensors[n].load(), t) for n, t in exact.items())
    assert weights.provenance["dequantized"] == 8
