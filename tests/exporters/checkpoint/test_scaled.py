"""Scaled FP8 checkpoints, and files that hold a whole pipeline."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vidc.exporters.checkpoint.load import Weights, load_weights
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.names import disagreements
from vidc.plugins.errors import BuildError

State = dict[str, Tensor]
Shapes = dict[str, torch.Size]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def load(file: Path, expected: Shapes) -> Weights:
    return load_weights(file, (), expected, CausalVideo.layouts(), disagreements)


def refused(file: Path, expected: Shapes) -> str:
    with pytest.raises(BuildError) as caught:
        load(file, expected)
    assert caught.value.code == "VIDC-CHECKPOINT-DTYPE"
    assert str(file) in caught.value.message
    return caught.value.message


def quantize(state: State, scale: str, dtype: torch.dtype, rows: bool) -> tuple[State, State]:
    """A scaled checkpoint, and what plain PyTorch makes of it."""
    stored, exact = {}, {}
    for name, tensor in state.items():
        stored[name] = exact[name] = tensor.half()
        if name.startswith("blocks.") and name.endswith(".weight") and tensor.ndim == 2:
            largest = tensor.abs().amax(1, keepdim=True) if rows else tensor.abs().max()
            factor = (largest / torch.finfo(dtype).max).float()
            stored[name] = (tensor / factor).to(dtype)
            stored[f"{name.removesuffix('.weight')}.{scale}"] = factor
            exact[name] = stored[name].float() * factor
    return stored, exact


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("scale", ["scale_weight", "weight_scale"])
def test_dequantized_as_plain_pytorch_does(
    tmp_path: Path, original: State, expected: Shapes, scale: str, dtype: torch.dtype, rows: bool
) -> None:
    stored, exact = quantize(original, scale, dtype, rows)
    layer = {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}
    extra = {
        "scale_weight": {
            "scaled_fp8": torch.empty(2, dtype=dtype),
            "blocks.0.ffn.0.scale_input": torch.ones(()),
        },
        "weight_scale": {
            "blocks.0.ffn.0.comfy_quant": in_bytes(json.dumps(layer)),
            "blocks.0.ffn.0.input_scale": torch.ones(()),
        },
    }[scale]
    save_file(stored | extra, tmp_path / "m.safetensors")
    weights = load(tmp_path / "m.safetensors", expected)
    # In the order of the names, which the fixtures give in both conventions.
    for (name, tensor), want in zip(
        sorted(weights.tensors.items()),
        (exact[old] for _, old in sorted((new, old) for old, new in names(original).items())),
        strict=True,
    ):
        assert torch.equal(tensor.load(), want), name
    assert weights.provenance["dequantized"] == 20


def names(original: State) -> dict[str, str]:
    from vidc.exporters.parts.causal_wan.names import canonical_name

    return {name: canonical_name(name) for name in original}


QUERY = "blocks.0.self_attn.q"


def in_bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{QUERY}.weight": torch.zeros(12, 12)}, f"{QUERY}.scale_weight is the scale of a we"),
        ({f"{QUERY}.weight": torch.zeros(12, 12).byte()}, "torch.uint8"),
        ({f"{QUERY}.scale_weight": torch.ones(3)}, "[3], its weight [12, 12]"),
        ({f"{QUERY}.scale_weight": torch.ones(12, 6)}, "[12, 6], its weight [12, 12]"),
        ({f"{QUERY}.weight_scale": torch.ones(())}, "the scale of a weight in torch.float32"),
        ({f"{QUERY}.other.scale_weight": torch.ones(())}, "the scale of no weight"),
        ({"text_embedding.0.weight": torch.zeros(12, 8).to(E4M3)}, "is torch.float8_e4m3fn"),
        ({f"{QUERY}.comfy_quant": in_bytes('{"format": "nvfp4"}')}, "nvfp4"),
        ({f"{QUERY}.comfy_quant": in_bytes("{")}, "says None"),
        (
            {
                f"{QUERY}.comfy_quant": torch.tensor(
                    list(b'{"format": "float8_x", "rot": 1}')
                ).byte()
            },
            "'rot': 1",
        ),
    ],
)
def test_refuses_other_quantization(
    tmp_path: Path, original: State, expected: Shapes, changes: State, said: str
) -> None:
    stored, _ = quantize(original, "scale_weight", E4M3, rows=False)
    save_file(stored | changes, tmp_path / "m.safetensors")
    assert said in refused(tmp_path / "m.safetensors", expected)


def test_scale_that_is_not_finite(tmp_path: Path, original: State, expected: Shapes) -> None:
    stored, _ = quantize(original, "scale_weight", E4M3, rows=False)
    stored[f"{QUERY}.scale_weight"] = torch.tensor(torch.nan)
    save_file(stored, tmp_path / "m.safetensors")
    with pytest.raises(BuildError, match="VIDC-CHECKPOINT-NONFINITE"):
        load(tmp_path / "m.safetensors", expected)


def test_whole_pipeline_in_one_file(
    tmp_path: Path, original: State, canonical: State, expected: Shapes
) -> None:
    stored, _ = quantize(original, "scale_weight", E4M3, rows=False)
    others = {
        "vae.decoder.conv1.weight": torch.zeros(2, 2),
        "text_encoders.umt5xxl.transformer.shared.weight": torch.zeros(4, 2),
        "text_encoders.umt5xxl.spiece_model": torch.zeros(3, dtype=torch.uint8),
    }
    for state, layout in ((original, "original Wan transformer"), (canonical, "diffusers")):
        own = {f"model.diffusion_model.{name}": tensor for name, tensor in state.items()}
        save_file(own | others, tmp_path / "all.safetensors")
        weights = load(tmp_path / "all.safetensors", expected)
        assert all(torch.equal(weights.tensors[n].load(), canonical[n]) for n in canonical)
        assert weights.provenance["part"] == "model"
        assert weights.provenance["layout"].startswith(layout)
    own = {f"model.diffusion_model.{name}": tensor for name, tensor in stored.items()}
    save_file(own | others, tmp_path / "all.safetensors")
    assert load(tmp_path / "all.safetensors", expected).provenance["dequantized"] == 20


def test_pipeline_without_the_part(tmp_path: Path, expected: Shapes) -> None:
    others = {"vae.decoder.conv1.weight": torch.zeros(2, 2), "model.x": torch.zeros(1)}
    save_file(others, tmp_path / "all.safetensors")
    with pytest.raises(BuildError, match="VIDC-CHECKPOINT-MISMATCH"):
        load(tmp_path / "all.safetensors", expected)
