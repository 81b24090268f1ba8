"""Components of a DIAMOND world model, with EDM preconditioning inside.

Preconditioning is that of "Elucidating the Design Space of Diffusion-Based Generative Models"
(arXiv 2206.00364), table 1, with the offset noise of training added to sigma.
"""

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.diamond_unet.config import COLORS, UNetConfig
from vidc.exporters.parts.diamond_unet.part import GROUP, DiamondUNetPart
from vidc.plugins.signature import Access, Role, Signature, TensorSpec


class _Denoising(nn.Module):
    """Base of both components, which share all weights; each runs one of the two networks."""

    def __init__(self, network: nn.Module, child: str, config: UNetConfig) -> None:
        super().__init__()
        self.add_module(GROUP, network)
        self.inner_model = f"{GROUP}.{child}.inner_model"
        self.config = config

    def denoised(
        self,
        x: Tensor,
        sigma: Tensor,
        past: Tensor,
        past_noise: Tensor | None = None,
        actions: Tensor | None = None,
    ) -> Tensor:
        """Returns the estimate of the clean frame, float32 ``[1, 3, h, w]`` from -1 to 1.

        Args:
            x: noisy frame, float32 ``[1, 3, h, w]``.
            sigma: its noise level, float32 ``[1]``.
            past: images that condition it, float32 ``[1, 3 n, h, w]``.
            past_noise: EDM's c_noise of ``past``, float32 ``[1]``; None if it is no input.
            actions: as in ``InnerModel``.
        """
        data = self.config.sigma_data
        total = (sigma.square() + self.config.sigma_offset**2).sqrt()
        variance = total.square() + data**2
        skip = data**2 / variance
        images = torch.cat([past / data, x / variance.sqrt()], dim=1)
        inner_model = self.get_submodule(self.inner_model)
        output: Tensor = inner_model(images, total.log() / 4, past_noise, actions)
        denoised = skip * x + total * skip.sqrt() * output
        return denoised.clamp(-1, 1)


class Denoise(_Denoising):
    """Component ``denoise``: a noisy low-resolution frame to the clean one."""

    def forward(
        self,
        x: Tensor,
        sigma: Tensor,
        past_noise: Tensor,
        added: Tensor,
        past: Tensor,
        actions: Tensor,
    ) -> tuple[Tensor]:
        """Denoises a frame after noised past frames; arguments as in its signature."""
        return (self.denoised(x, sigma, past + added, past_noise, actions),)


class DenoiseCleanPast(_Denoising):
    """Component ``denoise`` of a network whose past frames have no noise."""

    def forward(self, x: Tensor, sigma: Tensor, past: Tensor, actions: Tensor) -> tuple[Tensor]:
        """Denoises a frame; arguments as in its signature."""
        return (self.denoised(x, sigma, past, None, actions),)


class UpsampleFrame(_Denoising):
    """Component ``upsample``: a noisy frame to the clean one, given it in low resolution."""

    def forward(self, x: Tensor, sigma: Tensor, low: Tensor, past: Tensor) -> tuple[Tensor]:
        """Denoises a frame; arguments as in its signature."""
        # Past frames have no noise here, yet the network takes its c_noise: 0, that of sigma 1.
        nothing = torch.zeros_like(sigma)
        return (self.denoised(x, sigma, torch.cat([past, low], dim=1), nothing),)


def components(part: DiamondUNetPart, network: nn.Module) -> dict[str, Component]:
    """Returns the components of a world model by name.

    ``denoise`` reads the states ``past.low``, float32 ``[1, 3 past, h, w]`` from -1 to 1 with the
    newest frame last, and ``actions``, float32 ``[1, past, inputs]``. ``upsample`` reads
    ``past.full``, float32 ``[1, 3 past, H, W]``. The program shifts the states.

    Args:
        part: sizes.
        network: a ``WorldModel`` of these sizes; shared, not copied.
    """
    made = {"denoise": _denoise(part, network)}
    if part.upsampler.factor > 1:
        made["upsample"] = _upsample(part, network)
    return made


def _denoise(part: DiamondUNetPart, network: nn.Module) -> Component:
    config = part.config
    low = (part.height, part.width)
    past = (1, COLORS * config.past, *low)
    noised = (_input("past_noise", (1,)), _input("added", past)) if config.noised_past else ()
    signature = Signature(
        (
            _input("x", (1, COLORS, *low)),
            _input("sigma", (1,)),
            *noised,
            _state("past.low", past),
            _state("actions", (1, config.past, config.actions)),
            _output((1, COLORS, *low)),
        )
    )
    kind = Denoise if config.noised_past else DenoiseCleanPast
    return Component("denoise", kind(network, "denoiser", config), signature)


def _upsample(part: DiamondUNetPart, network: nn.Module) -> Component:
    config = part.upsampler
    full = (config.factor * part.height, config.factor * part.width)
    signature = Signature(
        (
            _input("x", (1, COLORS, *full)),
            _input("sigma", (1,)),
            _input("low", (1, COLORS, *full)),
            _state("past.full", (1, COLORS * config.past, *full)),
            _output((1, COLORS, *full)),
        )
    )
    return Component("upsample", UpsampleFrame(network, "upsampler", config), signature)


def _input(name: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, shape, "float32", Role.INPUT)


def _state(name: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, shape, "float32", Role.STATE, Access.READ)


def _output(shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec("denoised", shape, "float32", Role.OUTPUT)
