import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vidc.exporters.checkpoint.layout import canonical as to_canonical
from vidc.exporters.checkpoint.layout import recognize, strip
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.names import canonical_name
from vidc.plugins.errors import VidcError

LAYOUTS = CausalVideo.layouts()


def test_every_original_name(original_names: dict[str, str]) -> None:
    assert {old: canonical_name(old) for old in original_names} == original_names


def test_modules_are_renamed_like_their_parameters() -> None:
    assert canonical_name("blocks.11.cross_attn.o") == "blocks.11.attn2.to_out.0"
    assert canonical_name("head.head") == "proj_out"


@pytest.mark.parametrize("name", ["blocks", "blocks.0", "head.headless", "blocks.0.ffn.01", "x.q"])
def test_other_names_stay(name: str) -> None:
    assert canonical_name(name) == name


@pytest.mark.parametrize(
    ("wrapped", "name"),
    [
        ("model.blocks.0.modulation", "blocks.0.modulation"),
        ("model._fsdp_wrapped_module.blocks.0.modulation", "blocks.0.modulation"),
        ("module.model.head.head.bias", "head.head.bias"),
        ("model.diffusion_model.head.head.bias", "head.head.bias"),
        ("model.blocks.3._fsdp_wrapped_module.ffn._orig_mod.0.bias", "blocks.3.ffn.0.bias"),
        ("_orig_mod.model.blocks.3._checkpoint_wrapped_module.norm3.bias", "blocks.3.norm3.bias"),
        ("base_model.model.model.blocks.3.ffn.0", "blocks.3.ffn.0"),
        ("text_model.model.x", "text_model.model.x"),
        ("model", "model"),
    ],
)
def test_wrappers_are_stripped(wrapped: str, name: str) -> None:
    assert strip(wrapped) == name


@given(
    leading=st.lists(st.sampled_from(["model", "module", "diffusion_model"]), max_size=3),
    inside=st.lists(st.sampled_from(["_fsdp_wrapped_module", "_orig_mod"]), max_size=3),
    place=st.integers(0, 4),
)
def test_any_mix_of_wrappers(leading: list[str], inside: list[str], place: int) -> None:
    parts = ["blocks", "1", "self_attn", "q", "weight"]
    parts[place:place] = inside
    assert strip(".".join(leading + parts)) == "blocks.1.self_attn.q.weight"


@pytest.mark.parametrize("prefix", ["", "model.", "model._fsdp_wrapped_module.", "module.model."])
def test_original_layout(
    prefix: str, original: dict[str, Tensor], canonical: dict[str, Tensor]
) -> None:
    wrapped = {prefix + name: tensor for name, tensor in original.items()}
    result, layout = to_canonical(wrapped, "m", LAYOUTS)
    assert layout.name == "original Wan transformer"
    assert result.keys() == canonical.keys()
    assert all(result[name] is canonical[name] for name in canonical)


@pytest.mark.parametrize("prefix", ["", "model.", "diffusion_model._orig_mod."])
def test_diffusers_layout(prefix: str, canonical: dict[str, Tensor]) -> None:
    wrapped = {prefix + name: tensor for name, tensor in canonical.items()}
    result, layout = to_canonical(wrapped, "m", LAYOUTS)
    assert layout.name == "diffusers WanTransformer3DModel"
    assert all(result[name] is canonical[name] for name in canonical)


@pytest.mark.parametrize(
    "names",
    [
        ("blocks.0.modulation", "model.blocks.0.modulation"),
        ("blocks.0.self_attn.q.bias", "blocks.0.attn1.to_q.bias", "blocks.0.cross_attn.q.bias"),
    ],
)
def test_two_names_for_one_tensor(names: tuple[str, ...]) -> None:
    with pytest.raises(VidcError) as caught:
        to_canonical(dict.fromkeys(names), "m", LAYOUTS)
    assert caught.value.code == "VIDC-CHECKPOINT-MISMATCH"


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (["text_model.encoder.layers.0.self_attn.q_proj.weight"], "CLIP"),
        (["encoder.downsamples.0.residual.0.gamma", "conv1.weight"], "original Wan VAE"),
        (["encoder.down_blocks.0.norm1.gamma", "quant_conv.bias"], "diffusers autoencoder"),
        (["down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight"], "UNet"),
        (["encoder.block.0.layer.0.SelfAttention.q.weight"], "UMT5 text encoder"),
        (["blocks.0.self_attn.q.lora_A.weight", "blocks.0.self_attn.q.lora_B.weight"], "LoRA"),
        (["layer1.0.conv1.weight"], "unknown"),
    ],
)
def test_what_a_checkpoint_looks_like(names: list[str], layout: str) -> None:
    assert recognize(names, LAYOUTS).name == layout
