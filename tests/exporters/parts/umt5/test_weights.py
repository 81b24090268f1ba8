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
