"""Part ``diamond_unet``: denoiser and upsampler of a DIAMOND world model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.diamond_unet.config import DenoiserConfig, UpsamplerConfig
from vidc.exporters.parts.diamond_unet.work import Work, unet_work

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.load import Weights
    from vidc.exporters.component import Component

GROUP = "diamond"
_ACTIVATIONS = 12
"""Activations at full resolution and width that a call holds at once."""
_CONVOLUTION = 4
"""Dimensions of a convolution's weight."""


@dataclass(frozen=True)
class DiamondUNetPart(Part):
    """A denoiser of low-resolution frames and, if its factor is above 1, their upsampler.

    Attributes:
        config: sizes of the denoiser.
        upsampler: sizes of the upsampler.
        height: of a low-resolution frame, in pixels.
        width: of a low-resolution frame, in pixels.
    """

    group: ClassVar[str] = GROUP
    config: DenoiserConfig
    upsampler: UpsamplerConfig
    height: int
    width: int

    @property
    def component_names(self) -> tuple[str, ...]:
        """``denoise`` and, with an upsampler, ``upsample``."""
        return ("denoise", "upsample") if self.upsampler.factor > 1 else ("denoise",)

    def module(self) -> "nn.Module":
        """Returns a ``WorldModel`` for inference."""
        from vidc.exporters.parts.diamond_unet.network import WorldModel

        return WorldModel(self.config, self.upsampler).eval()

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of a ``WorldModel``."""
        from vidc.exporters.parts.diamond_unet.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which frames fill the range of pixels and follow the past."""
        from vidc.exporters.parts.diamond_unet.random_weights import random_weight

        return random_weight(name, shape, seed)

    def load(
        self, checkpoint: Path, loras: Sequence[Path], layouts: "Sequence[Layout]", ema: bool
    ) -> "Weights":
        """Reads an agent's state dict, such as ``csgo.pt``; stacks the Linears of its norms.

        Raises:
            BuildError: ``VIDC-CHECKPOINT-CONFIG``, the YAML files beside it describe another
                model; what ``load_weights`` raises.
            UsageError: ``VIDC-CHECKPOINT-MISSING``.
        """
        from vidc.exporters.checkpoint.load import Weights, load_weights
        from vidc.exporters.parts.diamond_unet.agent_config import require_agent_config
        from vidc.exporters.parts.diamond_unet.names import OTHER_NETWORKS, fuse, separate_shapes

        require_agent_config(checkpoint, self)
        network = self.network("fp32")
        loaded = load_weights(
            checkpoint, loras, separate_shapes(network), layouts, self.disagreements,
            ema=ema, ignored=OTHER_NETWORKS,
        )  # fmt: skip
        return Weights(fuse(network, loaded.tensors), loaded.provenance)

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists sizes of the preset that a checkpoint contradicts."""
        from vidc.exporters.parts.diamond_unet.names import disagreements

        return disagreements(found, self.config, self.upsampler)

    def load_settings(self) -> dict[str, Any]:
        """Returns the sizes of both networks."""
        return {**super().load_settings(), "upsampler": self.upsampler.to_json()}

    @property
    def denoise_work(self) -> Work:
        """Work of one call of the denoiser."""
        return unet_work(self.config, self.config.past + 1, (self.height, self.width))

    @property
    def upsample_work(self) -> Work:
        """Work of one call of the upsampler; nothing if the model has none."""
        factor = self.upsampler.factor
        if factor == 1:
            return Work(0, 0)
        size = (factor * self.height, factor * self.width)
        return unet_work(self.upsampler, self.upsampler.past + 2, size)

    @property
    def weights_elements(self) -> int:
        """Elements of the convolutions and Linears of both networks."""
        return self.denoise_work.weights + self.upsample_work.weights

    def working_elements(self, component: str) -> int:
        """Elements of activations at full resolution."""
        config, factor = (
            (self.upsampler, self.upsampler.factor) if component == "upsample" else (self.config, 1)
        )
        return _ACTIVATIONS * factor**2 * self.height * self.width * max(config.channels)

    @property
    def playing_elements(self) -> int:
        """Elements of activations of the larger component."""
        return max(map(self.working_elements, self.component_names))

    def rows(self, linear: str) -> int:
        """Returns the pixels that a convolution computes; 1 for a Linear, which gets one vector."""
        network, *names = linear.split(".")
        if not {"unet", "conv_in", "conv_out"} & {*names}:
            return 1
        upsamples = network == "upsampler"
        config, factor = (self.upsampler, self.upsampler.factor) if upsamples else (self.config, 1)
        last, level = len(config.channels) - 1, 0
        for name, index in pairwise(names):
            if name in ("d_blocks", "downsamples"):
                level = int(index)
            elif name in ("u_blocks", "upsamples"):
                level = last - int(index)
            elif name == "mid_blocks":
                level = last
        sides = (factor * self.height, factor * self.width)
        height, width = (-(-side // config.stride) * config.stride for side in sides)
        return height * width >> (2 * level)

    @property
    def other_products(self) -> tuple[tuple[int, int], ...]:
        """Every convolution, as a matmul over its pixels."""
        return tuple(
            (math.prod(shape), self.rows(name))
            for name, shape in self.shapes().items()
            if len(shape) == _CONVOLUTION
        )
