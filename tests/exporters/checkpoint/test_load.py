from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from vidc.exporters.checkpoint.lazy import is_finite
from vidc.exporters.checkpoint.load import load_weights
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.names import disagreements
from vidc.plugins.errors import BuildError

State = dict[str, Tensor]
Shapes = dict[str, torch.Size]


def refuse(state: State, expected: Shapes, folder: Path, code: str) -> BuildError:
    file = folder / "m.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)
    with pytest.raises(BuildError) as caught:
        load_weights(file, (), expected, CausalVideo.layouts(), disagreements)
    assert caught.value.code == code
    assert str(file) in caught.value.message
    return caught.value


def test_longlive_file(tmp_path: Path, original: State, canonical: State, expected: Shapes) -> None:
    file = tmp_path / "longlive_base.pt"
    state = {f"model.{name}": tensor for name, tensor in original.items()}
    ema = {f"model._fsdp_wrapped_module.{n}": torch.zeros_like(t) for n, t in original.items()}
    torch.save({"generator": state, "generator_ema": ema, "step": 700}, file)
    weights = load_weights(file, (), expected, CausalVideo.layouts(), disagreements)
    assert weights.tensors.keys() == canonical.keys()
    assert all(torch.equal(weights.tensors[n].load(), canonical[n]) for n in canonical)
    assert weights.provenance == {
        "files": ["longlive_base.pt"],
        "layout": "original Wan transformer",
        "section": "generator",
        "loras": [],
    }


def test_diffusers_folder(tmp_path: Path, canonical: State, expected: Shapes, wan) -> None:  # type: ignore[no-untyped-def]
    wan.save_pretrained(tmp_path, max_shard_size="10KB")
    weights = load_weights(tmp_path, (), expected, CausalVideo.layouts(), disagreements)
    assert len(weights.provenance["files"]) > 2
    assert all(torch.equal(weights.tensors[n].load(), canonical[n]) for n in canonical)
    assert weights.provenance["layout"] == "diffusers WanTransformer3DModel"


def test_vae_file(tmp_path: Path) -> None:
    state = {
        "conv2.weight": torch.randn(4, 4, 1, 1, 1),
        "decoder.middle.0.residual.0.gamma": torch.randn(8, 1, 1, 1),
        "decoder.upsamples.3.time_conv.bias": torch.randn(16),
    }
    names = {
        "post_quant_conv.weight": "conv2.weight",
        "decoder.mid_block.resnets.0.norm1.gamma": "decoder.middle.0.residual.0.gamma",
        "decoder.up_blocks.0.upsamplers.0.time_conv.bias": "decoder.upsamples.3.time_conv.bias",
    }
    torch.save(state, tmp_path / "vae.pth")
    expected = {new: state[old].shape for new, old in names.items()}
    weights = load_weights(tmp_path / "vae.pth", (), expected, CausalVideo.layouts(), disagreements)
    assert weights.provenance["layout"] == "original Wan VAE"
    assert all(torch.equal(weights.tensors[n].load(), state[old]) for n, old in names.items())


def test_foreign_checkpoint(tmp_path: Path, expected: Shapes) -> None:
    clip = {
        "text_model.embeddings.position_embedding.weight": torch.zeros(7, 4),
        "text_model.encoder.layers.0.self_attn.q_proj.weight": torch.zeros(4, 4),
    }
    error = refuse(clip, expected, tmp_path, "VIDC-CHECKPOINT-MISMATCH")
    assert "'CLIP'" in error.message
    assert f"{len(expected)} missing (" in error.message
    assert "2 unexpected (text_model.embeddings" in error.message


def test_lora_in_place_of_a_checkpoint(tmp_path: Path, expected: Shapes) -> None:
    lora = {"base_model.model.blocks.0.self_attn.q.lora_A.weight": torch.zeros(1, 12)}
    error = refuse(lora, expected, tmp_path, "VIDC-CHECKPOINT-MISMATCH")
    assert "--lora" in error.hint


def test_missing_and_unexpected_tensor(tmp_path: Path, original: State, expected: Shapes) -> None:
    state = dict(original)
    state["blocks.0.ffn.4.weight"] = state.pop("blocks.0.ffn.2.weight")
    error = refuse(state, expected, tmp_path, "VIDC-CHECKPOINT-MISMATCH")
    assert "original Wan transformer" in error.message
    assert "1 missing (blocks.0.ffn.net.2.weight)" in error.message
    assert "1 unexpected (blocks.0.ffn.4.weight)" in error.message


@pytest.mark.parametrize(
    ("name", "shape", "setting"),
    [
        ("blocks.0.ffn.net.0.proj.weight", (16, 12), "model.ffn_dim = 16, not 14"),
        ("patch_embedding.weight", (24, 4, 1, 2, 2), "model.dim = 24, not 12"),
        ("patch_embedding.weight", (12, 36, 1, 2, 2), "model.channels = 36, not 4"),
        ("patch_embedding.weight", (12, 4, 1, 4, 4), "model.patch = [1, 4, 4], not [1, 2, 2]"),
        (
            "condition_embedder.text_embedder.linear_1.weight",
            (12, 9),
            "model.text_dim = 9, not 8",
        ),
        (
            "condition_embedder.time_embedder.linear_1.weight",
            (12, 16),
            "model.freq_dim = 16, not 10",
        ),
    ],
)
def test_wrong_size_names_the_setting(
    tmp_path: Path,
    canonical: State,
    expected: Shapes,
    name: str,
    shape: tuple[int, ...],
    setting: str,
) -> None:
    state = canonical | {name: torch.zeros(shape)}
    error = refuse(state, expected, tmp_path, "VIDC-CHECKPOINT-MISMATCH")
    assert setting in error.message
    assert f"{name} is {list(shape)}, not {list(expected[name])}" in error.message
    assert "preset" in error.hint


def test_wrong_number_of_layers(tmp_path: Path, original: State, expected: Shapes) -> None:
    state = {name: tensor for name, tensor in original.items() if not name.startswith("blocks.1.")}
    error = refuse(state, expected, tmp_path, "VIDC-CHECKPOINT-MISMATCH")
    assert "model.layers = 1, not 2" in error.message


def test_wrong_shape_that_no_setting_explains(
    tmp_path: Path, canonical: State, expected: Shapes
) -> None:
    state = canonical | {"blocks.1.attn1.to_q.bias": torch.zeros(11)}
    error = refuse(state, expected, tmp_path, "VIDC-CHECKPOINT-MISMATCH")
    assert "1 of another shape (blocks.1.attn1.to_q.bias is [11], not [12])" in error.message
    assert "model." not in error.message


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_not_floating_point(
    tmp_path: Path, canonical: State, expected: Shapes, dtype: torch.dtype
) -> None:
    state = canonical | {"proj_out.bias": canonical["proj_out.bias"].to(dtype)}
    error = refuse(state, expected, tmp_path, "VIDC-CHECKPOINT-DTYPE")
    assert f"proj_out.bias is {dtype}" in error.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_not_finite(
    tmp_path: Path, canonical: State, expected: Shapes, dtype: torch.dtype, value: float
) -> None:
    state = {name: tensor.to(dtype, copy=True) for name, tensor in canonical.items()}
    state["blocks.1.ffn.net.2.weight"][3, 2:4] = value
    error = refuse(state, expected, tmp_path, "VIDC-CHECKPOINT-NONFINITE")
    assert "1 tensors: blocks.1.ffn.net.2.weight holds 2 of 168" in error.message


@given(
    size=st.integers(1, 200),
    data=st.data(),
    value=st.sampled_from([float("nan"), float("inf"), -float("inf"), 3e38]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_is_finite_wherever_the_value_is(
    size: int, data: st.DataObject, value: float, dtype: torch.dtype
) -> None:
    tensor = torch.linspace(-1, 1, size, dtype=dtype)
    tensor[data.draw(st.integers(0, size - 1))] = value
    assert is_finite(tensor) == bool(tensor.isfinite().all())


def test_an_empty_tensor_is_finite() -> None:
    assert is_finite(torch.empty(0, 3))
