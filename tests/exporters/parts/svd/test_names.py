"""Original names of Stable Video Diffusion's weights: single files and diffusers folders."""

import shutil

import pytest
import tiny_svd
import torch
from safetensors.torch import save_file

from vidc.compiler.cli.sources import SourceOptions
from vidc.exporters.checkpoint.load import load_weights
from vidc.exporters.parts.clip_vision.names import canonical_name as image_name
from vidc.exporters.parts.svd_unet.names import canonical_name as unet_name
from vidc.exporters.parts.svd_unet.names import require_frames
from vidc.exporters.parts.svd_vae.names import canonical_name as vae_name
from vidc.plugins.errors import BuildError, UsageError

UNET = {
    "time_embed.2.bias": "time_embedding.linear_2.bias",
    "label_emb.0.0.weight": "add_embedding.linear_1.weight",
    "input_blocks.0.0.weight": "conv_in.weight",
    "input_blocks.1.0.in_layers.0.weight":
        "down_blocks.0.resnets.0.spatial_res_block.norm1.weight",
    "input_blocks.1.0.time_stack.in_layers.2.bias":
        "down_blocks.0.resnets.0.temporal_res_block.conv1.bias",
    "input_blocks.2.0.time_mixer.mix_factor": "down_blocks.0.resnets.1.time_mixer.mix_factor",
    "input_blocks.3.0.op.weight": "down_blocks.0.downsamplers.0.conv.weight",
    "input_blocks.4.0.skip_connection.weight":
        "down_blocks.1.resnets.0.spatial_res_block.conv_shortcut.weight",
    "input_blocks.5.1.time_stack.0.ff_in.net.0.proj.weight":
        "down_blocks.1.attentions.1.temporal_transformer_blocks.0.ff_in.net.0.proj.weight",
    "input_blocks.5.1.time_pos_embed.2.weight":
        "down_blocks.1.attentions.1.time_pos_embed.linear_2.weight",
    "input_blocks.11.0.emb_layers.1.weight":
        "down_blocks.3.resnets.1.spatial_res_block.time_emb_proj.weight",
    "middle_block.0.out_layers.3.weight": "mid_block.resnets.0.spatial_res_block.conv2.weight",
    "middle_block.1.transformer_blocks.0.attn2.to_v.weight":
        "mid_block.attentions.0.transformer_blocks.0.attn2.to_v.weight",
    "middle_block.1.time_mixer.mix_factor": "mid_block.attentions.0.time_mixer.mix_factor",
    "middle_block.2.time_stack.emb_layers.1.bias":
        "mid_block.resnets.1.temporal_res_block.time_emb_proj.bias",
    "output_blocks.2.1.conv.weight": "up_blocks.0.upsamplers.0.conv.weight",
    "output_blocks.5.2.conv.bias": "up_blocks.1.upsamplers.0.conv.bias",
    "output_blocks.11.1.norm.weight": "up_blocks.3.attentions.2.norm.weight",
    "output_blocks.3.0.out_layers.0.weight":
        "up_blocks.1.resnets.0.spatial_res_block.norm2.weight",
    "out.2.weight": "conv_out.weight",
}  # fmt: skip
VAE = {
    "encoder.down.1.block.0.nin_shortcut.weight":
        "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
    "encoder.down.2.downsample.conv.bias": "encoder.down_blocks.2.downsamplers.0.conv.bias",
    "encoder.mid.attn_1.proj_out.weight": "encoder.mid_block.attentions.0.to_out.0.weight",
    "encoder.mid.block_2.conv1.weight": "encoder.mid_block.resnets.1.conv1.weight",
    "encoder.norm_out.weight": "encoder.conv_norm_out.weight",
    "decoder.mid.block_1.time_stack.in_layers.2.weight":
        "decoder.mid_block.resnets.0.temporal_res_block.conv1.weight",
    "decoder.mid.block_1.norm1.weight":
        "decoder.mid_block.resnets.0.spatial_res_block.norm1.weight",
    "decoder.mid.attn_1.q.weight": "decoder.mid_block.attentions.0.to_q.weight",
    "decoder.up.3.block.2.mix_factor": "decoder.up_blocks.0.resnets.2.time_mixer.mix_factor",
    "decoder.up.0.block.0.nin_shortcut.bias":
        "decoder.up_blocks.3.resnets.0.spatial_res_block.conv_shortcut.bias",
    "decoder.up.1.upsample.conv.weight": "decoder.up_blocks.2.upsamplers.0.conv.weight",
    "decoder.conv_out.weight": "decoder.conv_out.weight",
    "decoder.conv_out.time_mix_conv.weight": "decoder.time_conv_out.weight",
    "quant_conv.weight": "quant_conv.weight",
}  # fmt: skip
IMAGES = {
    "class_embedding": "vision_model.embeddings.class_embedding",
    "positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "resblocks.3.attn.out_proj.weight": "vision_model.encoder.layers.3.self_attn.out_proj.weight",
    "resblocks.3.ln_2.weight": "vision_model.encoder.layers.3.layer_norm2.weight",
    "resblocks.3.mlp.c_fc.bias": "vision_model.encoder.layers.3.mlp.fc1.bias",
    "proj": "visual_projection.weight",
}


@pytest.mark.parametrize(
    ("names", "canonical"), [(UNET, unet_name), (VAE, vae_name), (IMAGES, image_name)]
)
def test_original_names(names, canonical):
    assert {old: canonical(old) for old in names} == names
    assert all(canonical(new) == new for new in names.values())


@pytest.fixture(scope="module")
def svd():
    return tiny_svd.model()


def open_clip(weights, layers):
    """An image encoder's weights under open_clip's names, in its shapes."""
    top = {
        "vision_model.embeddings.position_embedding.weight": "positional_embedding",
        "vision_model.embeddings.patch_embedding": "conv1",
        "vision_model.embeddings.": "",
        "vision_model.pre_layrnorm": "ln_pre", "vision_model.post_layernorm": "ln_post",
        "vision_model.encoder.layers.": "transformer.resblocks.", "layer_norm1": "ln_1",
        "layer_norm2": "ln_2", "self_attn": "attn", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj",
    }  # fmt: skip
    found = {}
    for name, tensor in weights.items():
        if name == "visual_projection.weight":
            found["proj"] = tensor.T.contiguous()
        elif not any(f".{letter}_proj." in name for letter in "qkv"):
            for new, old in top.items():
                name = name.replace(new, old)
            found[name] = tensor
    for layer in range(layers):
        own = f"vision_model.encoder.layers.{layer}.self_attn."
        for kind in ("weight", "bias"):
            fused = [weights[f"{own}{letter}_proj.{kind}"] for letter in "qkv"]
            found[f"transformer.resblocks.{layer}.attn.in_proj_{kind}"] = torch.cat(fused)
    return found


def test_a_whole_pipeline_in_one_file(svd, tmp_path):
    """The original layout: the conditioner holds the image encoder and the VAE's encoder."""
    wanted = {group: tiny_svd.weights(part) for group, part in svd.parts.items()}
    visual = open_clip(wanted["image_encoder"], svd.image_encoder.layers)
    vae = {
        name: tensor[:, :, None, None] if ".attentions." in name and tensor.ndim == 2 else tensor
        for name, tensor in wanted["vae"].items()
    }
    encoder = "conditioner.embedders.3.encoder."
    file = {f"model.diffusion_model.{n}": t for n, t in wanted["unet"].items()}
    file |= {f"first_stage_model.{n}": t for n, t in vae.items() if n.startswith("decoder.")}
    file |= {f"{encoder}{n}": t for n, t in vae.items() if not n.startswith("decoder.")}
    file |= {f"conditioner.embedders.0.open_clip.model.visual.{n}": t for n, t in visual.items()}
    file["conditioner.embedders.0.open_clip.model.logit_scale"] = torch.ones(1)
    file["first_stage_model.encoder.conv_in.weight"] = torch.full((1,), torch.nan)
    path = tmp_path / "all.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in file.items()}, path)
    _, sources = SourceOptions(path).resolve(svd)
    assert sources.checkpoints.keys() == svd.parts.keys()
    for group, part in svd.parts.items():
        loaded = part.load(sources.checkpoints[group], (), svd.layouts(), ema=False)
        assert loaded.tensors.keys() == wanted[group].keys()
        for name, tensor in loaded.tensors.items():
            assert torch.equal(tensor.load(), wanted[group][name]), name


@pytest.fixture(scope="module")
def folder(svd, tmp_path_factory):
    root = tmp_path_factory.mktemp("pipeline")
    tiny_svd.save_pipeline(root, svd)
    return root


def test_a_diffusers_folder_with_both_variants(svd, folder, tmp_path):
    copied = tmp_path / "pipeline"
    shutil.copytree(folder, copied)
    for file in copied.rglob("*.safetensors"):
        shutil.copy(file, file.with_name(f"{file.stem}.fp16.safetensors"))
    _, sources = SourceOptions(copied).resolve(svd)
    for group, part in svd.parts.items():
        loaded = part.load(sources.checkpoints[group], (), svd.layouts(), ema=False)
        assert not any(".fp16" in name for name in loaded.provenance["files"])
    for file in copied.rglob("*.safetensors"):
        if ".fp16" not in file.name:
            file.unlink()
    for group, part in svd.parts.items():
        loaded = part.load(sources.checkpoints[group], (), svd.layouts(), ema=False)
        assert all(".fp16" in name for name in loaded.provenance["files"])
        assert torch.equal(
            next(iter(loaded.tensors.values())).load(),
            tiny_svd.weights(part)[next(iter(loaded.tensors))],
        )


def test_refuses_a_folder_of_the_other_variant(folder):
    other = tiny_svd.model("model.num_frames=25")
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-CONFIG.*num_frames = 4, the preset 25"):
        SourceOptions(folder).resolve(other)


@pytest.mark.parametrize(
    ("name", "frames"),
    [("svd_xt.safetensors", 14), ("svd_xt_1_1.safetensors", 14), ("svd.safetensors", 25),
     ("svd_image_decoder.safetensors", 25), ("SVD-XT.safetensors", 14),
     ("AnimateLCM-SVD-xt-1.1.safetensors", 14)],
)  # fmt: skip
def test_refuses_a_file_of_the_other_variant(tmp_path, name, frames):
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-CONFIG.*model\.num_frames"):
        require_frames(tmp_path / name, frames)
    require_frames(tmp_path / name, 39 - frames)
    require_frames(tmp_path / "mine.safetensors", frames)


def test_a_distilled_unet_in_place_of_the_pipeline_s(svd, folder, tmp_path):
    """AnimateLCM-SVD is a UNet in one file, and runs in the pipeline that it was distilled from."""
    distilled = tmp_path / "AnimateLCM-SVD-xt.safetensors"
    weights = {name: tensor + 1 for name, tensor in tiny_svd.weights(svd.unet_part).items()}
    save_file(weights, distilled)
    _, sources = SourceOptions(folder, {"unet": distilled}).resolve(svd)
    assert sources.checkpoints["unet"] == distilled
    assert sources.checkpoints["vae"] == folder / "vae"
    bare = tmp_path / "pipeline"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("unet"))
    _, sources = SourceOptions(bare, {"unet": distilled}).resolve(svd)
    assert sources.checkpoints["unet"] == distilled
    assert sources.checkpoints["vae"] == bare / "vae"
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-CONFIG.*25 frames"):
        svd.unet_part.load(distilled, (), svd.layouts(), ema=False)
    part = tiny_svd.model("model.num_frames=25").unet_part
    tensors = part.load(distilled, (), svd.layouts(), ema=False).tensors
    assert all(torch.equal(tensors[name].load(), weights[name]) for name in weights)


def test_refuses_a_folder_without_image_encoder(svd, folder, tmp_path):
    copied = tmp_path / "pipeline"
    shutil.copytree(folder, copied)
    shutil.rmtree(copied / "image_encoder")
    with pytest.raises(UsageError, match=r"VIDC-CHECKPOINT-MISSING.*image_encoder/"):
        SourceOptions(copied).resolve(svd)
    without = tiny_svd.model("clip.image_encoder=false")
    _, sources = SourceOptions(copied).resolve(without)
    assert sources.checkpoints.keys() == {"unet", "vae"}


def test_refuses_another_network_s_weights(svd, folder):
    part = svd.unet_part
    with pytest.raises(BuildError, match="VIDC-CHECKPOINT-MISMATCH"):
        load_weights(
            folder / "vae", (), part.shapes(), svd.layouts(), part.disagreements,
            prefixes=part.prefixes, adapt=part.adapt,
        )  # fmt: skip
