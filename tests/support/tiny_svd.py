"""A tiny Stable Video Diffusion: vidc's networks and those of diffusers, with the same weights."""

from functools import cache
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLTemporalDecoder,
    EulerDiscreteScheduler,
    StableVideoDiffusionPipeline,
    UNetSpatioTemporalConditionModel,
)
from torch import Tensor, nn
from transformers import CLIPImageProcessorPil, CLIPVisionConfig, CLIPVisionModelWithProjection

from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.compiler.validate.reference import EagerEngine, part_engines
from vidc.exporters.families.svd import Svd
from vidc.exporters.models import with_weights
from vidc.exporters.part import Part
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.clip import Clip

SEED = 3
CPU = torch.device("cpu")


def model(*assignments: str) -> Svd:
    """The model of preset svd-tiny, with other settings."""
    resolved = resolve("svd-tiny", gpu="cpu", assignments=assignments, environ={}).model
    assert isinstance(resolved, Svd)
    return resolved


def weights(part: Part) -> dict[str, Tensor]:
    return {name: tensor.load() for name, tensor in part.random_weights(SEED).items()}


def network(part: Part) -> nn.Module:
    """The part's own network."""
    return with_weights(part.network("fp32"), weights(part))


def engines(svd: Svd) -> dict[str, EagerEngine]:
    """Every component, run by PyTorch."""
    found: dict[str, EagerEngine] = {}
    for part in svd.parts.values():
        found |= part_engines(part, network(part))
    return found


def session(svd: Svd, seed: int = 0) -> Clip:
    """A session over PyTorch's components."""
    return Clip(Resources(program_spec(svd), engines(svd), CPU), seed)


@cache
def unet(svd: Svd) -> UNetSpatioTemporalConditionModel:
    """diffusers' UNet."""
    sizes = svd.unet
    made = UNetSpatioTemporalConditionModel(
        block_out_channels=sizes.channels, num_attention_heads=sizes.heads,
        cross_attention_dim=sizes.image_dim, addition_time_embed_dim=sizes.id_dim,
        projection_class_embeddings_input_dim=3 * sizes.id_dim, num_frames=sizes.num_frames,
        sample_size=16, layers_per_block=sizes.layers,
    )  # fmt: skip
    made.load_state_dict(weights(svd.unet_part))
    return made.eval()


@cache
def vae(svd: Svd) -> AutoencoderKLTemporalDecoder:
    """diffusers' VAE."""
    sizes = svd.vae
    made = AutoencoderKLTemporalDecoder(
        block_out_channels=sizes.channels, layers_per_block=sizes.layers, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4,
    )  # fmt: skip
    made.load_state_dict(weights(svd.vae_part))
    return made.eval()


@cache
def image_encoder(svd: Svd) -> CLIPVisionModelWithProjection:
    """transformers' image encoder."""
    sizes = svd.image_encoder
    config = CLIPVisionConfig(
        hidden_size=sizes.width, intermediate_size=sizes.hidden, hidden_act="gelu",
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, patch_size=sizes.patch,
        image_size=sizes.image, projection_dim=sizes.projection,
    )  # fmt: skip
    made = CLIPVisionModelWithProjection(config)
    made.load_state_dict(weights(svd.parts["image_encoder"]))
    return made.eval()


def scheduler() -> EulerDiscreteScheduler:
    """The scheduler that Stable Video Diffusion is released with."""
    return EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
        prediction_type="v_prediction", timestep_type="continuous", use_karras_sigmas=True,
        sigma_min=0.002, sigma_max=700.0, timestep_spacing="leading", steps_offset=1,
    )  # fmt: skip


def pipeline(svd: Svd) -> StableVideoDiffusionPipeline:
    """diffusers' pipeline, without a progress bar."""
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": svd.image_encoder.image}, crop_size=svd.image_encoder.image
    )
    made = StableVideoDiffusionPipeline(
        vae(svd), image_encoder(svd), unet(svd), scheduler(), processor
    )
    made.set_progress_bar_config(disable=True)
    return made


def save_pipeline(folder: Path, svd: Svd) -> None:
    """A diffusers folder, as it is downloaded."""
    pipeline(svd).save_pretrained(folder)


def relative_l2(found: Tensor, wanted: Tensor) -> float:
    """The error's norm over the reference's."""
    assert found.shape == wanted.shape
    return float((found - wanted).norm() / wanted.norm())
