"""diffusers' and transformers' networks of Stable Video Diffusion, at a model's sizes."""

from collections.abc import Mapping
from typing import Any

from diffusers import (
    AutoencoderKLTemporalDecoder,
    CMStochasticIterativeScheduler,
    EulerDiscreteScheduler,
    StableVideoDiffusionPipeline,
    UNetSpatioTemporalConditionModel,
)
from torch import Tensor
from transformers import CLIPImageProcessorPil, CLIPVisionConfig, CLIPVisionModelWithProjection

from vidc.exporters.families.svd import Svd

Weights = Mapping[str, Tensor]


def unet(svd: Svd, weights: Weights) -> UNetSpatioTemporalConditionModel:
    """diffusers' UNet, with weights under its own names."""
    sizes = svd.unet
    made = UNetSpatioTemporalConditionModel(
        block_out_channels=sizes.channels, num_attention_heads=sizes.heads,
        cross_attention_dim=sizes.image_dim, addition_time_embed_dim=sizes.id_dim,
        projection_class_embeddings_input_dim=3 * sizes.id_dim, num_frames=sizes.num_frames,
        sample_size=16, layers_per_block=sizes.layers,
    )  # fmt: skip
    made.load_state_dict(weights)
    return made.eval()


def vae(svd: Svd, weights: Weights) -> AutoencoderKLTemporalDecoder:
    """diffusers' VAE, with weights under its own names."""
    sizes = svd.vae
    made = AutoencoderKLTemporalDecoder(
        block_out_channels=sizes.channels, layers_per_block=sizes.layers, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4,
    )  # fmt: skip
    made.load_state_dict(weights)
    return made.eval()


def image_encoder(svd: Svd, weights: Weights) -> CLIPVisionModelWithProjection:
    """transformers' image encoder, with weights under its own names."""
    sizes = svd.image_encoder
    config = CLIPVisionConfig(
        hidden_size=sizes.width, intermediate_size=sizes.hidden, hidden_act="gelu",
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, patch_size=sizes.patch,
        image_size=sizes.image, projection_dim=sizes.projection,
    )  # fmt: skip
    made = CLIPVisionModelWithProjection(config)
    made.load_state_dict(weights)
    return made.eval()


class ConsistencyScheduler(CMStochasticIterativeScheduler):
    """diffusers' scheduler of consistency models with the parameterization of G-U-N/AnimateLCM.

    The network is Stable Video Diffusion's: it predicts v, and takes ``0.25 log(sigma)``.
    """

    def sigma_to_t(self, sigmas: Any) -> Any:
        return super().sigma_to_t(sigmas) / 1000

    def get_scalings_for_boundary_condition(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        keep, change = self.get_scalings(sigma)
        return keep, -change


def consistency_scheduler() -> ConsistencyScheduler:
    """The scheduler of AnimateLCM-SVD."""
    return ConsistencyScheduler(sigma_max=700.0, sigma_data=1.0, clip_denoised=False)


def scheduler() -> EulerDiscreteScheduler:
    """The scheduler that Stable Video Diffusion is released with."""
    return EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
        prediction_type="v_prediction", timestep_type="continuous", use_karras_sigmas=True,
        sigma_min=0.002, sigma_max=700.0, timestep_spacing="leading", steps_offset=1,
    )  # fmt: skip


def pipeline(
    svd: Svd,
    vae: AutoencoderKLTemporalDecoder,
    image_encoder: CLIPVisionModelWithProjection,
    unet: UNetSpatioTemporalConditionModel,
) -> StableVideoDiffusionPipeline:
    """diffusers' pipeline of these networks, without a progress bar."""
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": svd.image_encoder.image}, crop_size=svd.image_encoder.image
    )
    made = StableVideoDiffusionPipeline(vae, image_encoder, unet, scheduler(), processor)
    made.set_progress_bar_config(disable=True)
    return made
