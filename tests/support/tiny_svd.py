"""A tiny Stable Video Diffusion: vidc's networks and those of diffusers, with the same weights."""

from functools import cache
from pathlib import Path

import diffusers_svd
import numpy as np
import torch
from diffusers import (
    AutoencoderKLTemporalDecoder,
    StableVideoDiffusionPipeline,
    UNetSpatioTemporalConditionModel,
)
from PIL import Image
from torch import Tensor, nn
from transformers import CLIPVisionModelWithProjection

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


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def picture() -> Image.Image:
    """An image of noise, of the preset's size."""
    values = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    return Image.fromarray(values)


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


@cache
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
    return diffusers_svd.unet(svd, weights(svd.unet_part))


@cache
def vae(svd: Svd) -> AutoencoderKLTemporalDecoder:
    """diffusers' VAE."""
    return diffusers_svd.vae(svd, weights(svd.vae_part))


@cache
def image_encoder(svd: Svd) -> CLIPVisionModelWithProjection:
    """transformers' image encoder."""
    return diffusers_svd.image_encoder(svd, weights(svd.parts["image_encoder"]))


def pipeline(svd: Svd) -> StableVideoDiffusionPipeline:
    """diffusers' pipeline, without a progress bar."""
    return diffusers_svd.pipeline(svd, vae(svd), image_encoder(svd), unet(svd))


def save_pipeline(folder: Path, svd: Svd) -> None:
    """A diffusers folder, as it is downloaded."""
    pipeline(svd).save_pretrained(folder)


def relative_l2(found: Tensor, wanted: Tensor) -> float:
    """The error's norm over the reference's."""
    assert found.shape == wanted.shape
    return float((found - wanted).norm() / wanted.norm())
