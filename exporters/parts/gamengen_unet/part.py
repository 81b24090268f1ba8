"""Part ``gamengen_unet``: GameNGen's UNet, which makes the next latent of past ones and actions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.gamengen_unet.config import GROUPS, GameNGenConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.lazy import LazyTensor
    from vidc.exporters.checkpoint.load import Weights
    from vidc.exporters.component import Component

_ACTIVATIONS = 20
"""Activations at full resolution that a pass holds at once, in latent pixels x channels."""
_CONVOLUTION = 4
"""Dimensions of a convolution's weight."""
ONCE = ("action_embedding", "action_kv", "class_embedding", "shifts", "time_embedding")
"""First words of the names of weights that are used once a frame."""


@dataclass(frozen=True)
class GameNGenUnetPart(Part):
    """A UNet for latents of one size.

    Attributes:
        config: sizes of the network.
        latent: height and width of a latent.
        steps: denoising steps of a frame.
        halves: 2 with guidance, a prediction without past latents and one with them; otherwise 1.
        zeroed: channels of the past that are zeros in the first of two halves.
        noised: True if past latents get noise.
    """

    group: ClassVar[str] = "unet"
    config: GameNGenConfig
    latent: tuple[int, int]
    steps: int
    halves: int = 1
    zeroed: int = 0
    noised: bool = False

    @property
    def component_names(self) -> tuple[str, ...]:
        """``condition_frame``, once a frame, and ``denoise``, once a step."""
        return ("condition_frame", "denoise")

    def module(self) -> "nn.Module":
        """Returns a ``GameNGenUnet``."""
        from vidc.exporters.parts.gamengen_unet.network import GameNGenUnet

        return GameNGenUnet(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of a ``GameNGenUnet``."""
        from vidc.exporters.parts.gamengen_unet.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which attention is peaked and every action counts.

        Branches are half as large as what they are added to. With branches twice as large, the tiny
        preset is chaotic: float32 rounding errors grow from 8e-7 to 5e-4 within 30 frames.
        """
        from vidc.exporters.draw import AFTER_SILU, draw
        from vidc.exporters.parts.spatio_temporal_weights import random_weight

        if name in ("action_embedding.weight", "class_embedding.weight"):
            return draw(name, shape, seed)
        after_silu = (".conv1.", ".conv2.", "linear_2.", "shifts.", "conv_out.")
        gain = AFTER_SILU if any(part in name for part in after_silu) else 1.0
        if any(part in name for part in ("to_q", "action_kv")):
            gain = 1.2
        if any(part in name for part in (".conv2.", ".to_out.", ".net.2.")):
            gain *= 0.5
        return random_weight(name, shape, seed, gain)

    def load(
        self, checkpoint: Path, loras: Sequence[Path], layouts: "Sequence[Layout]", ema: bool
    ) -> "Weights":
        """Reads the UNet, and the embedding of actions from the file beside its folder.

        Raises:
            UsageError: ``VIDC-CHECKPOINT-MISSING``, there is no such file.
            BuildError: ``VIDC-CHECKPOINT-MISMATCH``, it has another number of actions; what
                ``load_weights`` raises.
        """
        from vidc.exporters.parts.gamengen_unet.checkpoint import load

        return load(self, checkpoint, loras, layouts, ema)

    def files_beside(self, checkpoint: Path) -> tuple[Path, ...]:
        """Returns the file of the embedding of actions, in the folder that holds ``unet/``."""
        from vidc.exporters.parts.gamengen_unet.checkpoint import action_file

        return (action_file(checkpoint),)

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings in the config of diffusers' UNet."""
        from vidc.exporters.parts.gamengen_unet.checkpoint import config_settings

        return {"UNet2DConditionModel": config_settings(self.config)}

    def adapt(self, tensors: "dict[str, LazyTensor]", layout: "Layout") -> "dict[str, LazyTensor]":
        """Turns the transformers' 1 x 1 convolutions into linear layers."""
        from vidc.exporters.parts.pixel_linears import as_linears

        return as_linears(tensors)

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists sizes of the preset that a checkpoint contradicts."""
        from vidc.exporters.parts.gamengen_unet.names import disagreements

        return disagreements(found, self.config)

    @property
    def weights_elements(self) -> int:
        """Parameters of the network."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    def working_elements(self, component: str) -> int:
        """Elements of activations of a pass; ``condition_frame`` has next to none."""
        return 0 if component == "condition_frame" else self.playing_elements

    @property
    def playing_elements(self) -> int:
        """Elements of activations of a pass."""
        return _ACTIVATIONS * self.halves * math.prod(self.latent) * self.config.channels[0]

    @property
    def normalizes(self) -> bool:
        """True if every group of every norm has more than one value."""
        widths = zip(self.config.channels, self.config.channels[1:], strict=False)
        return all(
            self.pixels(level) * min(pair) > GROUPS for level, pair in enumerate(widths, start=1)
        )

    def pixels(self, level: int) -> int:
        """Returns the latent pixels of a resolution; odd sizes are rounded up."""
        return math.prod(-(-side // 2**level) for side in self.latent)

    def rows(self, linear: str) -> int:
        """Rows that a call multiplies with a layer's weight: the pixels of its resolution."""
        kind, *rest = linear.split(".")
        if kind in ONCE:
            return self.config.past if kind.startswith("action") else self.steps
        last = level = len(self.config.channels) - 1
        if kind in ("down_blocks", "up_blocks"):
            level = int(rest[0]) if kind == "down_blocks" else last - int(rest[0])
        elif kind != "mid_block":
            level = 0
        # A sampler's convolution computes the pixels of the next resolution.
        level += (".downsamplers." in linear) - (".upsamplers." in linear)
        return self.halves * self.pixels(level)

    @property
    def convolutions(self) -> dict[str, tuple[int, int]]:
        """Every convolution, as the elements of its weight and the pixels that it computes."""
        return {
            name: (math.prod(shape), self.rows(name))
            for name, shape in self.shapes().items()
            if len(shape) == _CONVOLUTION
        }

    @property
    def other_products(self) -> tuple[tuple[int, int], ...]:
        """Every convolution, as a matmul over its pixels."""
        return tuple(self.convolutions.values())

    @property
    def step_flops(self) -> float:
        """FLOPs of a call of ``denoise``: convolutions, linear layers and attention."""
        shapes = self.shapes()
        linears = {
            name: (math.prod(shape), self.rows(name))
            for name, shape in shapes.items()
            if len(shape) == 2 and not name.startswith(ONCE)
        }
        products = sum(weight * rows for weight, rows in (self.convolutions | linears).values())
        config, attention = self.config, 0
        for block, shape in shapes.items():
            if block.endswith("attn1.to_out.0.weight"):
                pixels = self.rows(block) // self.halves
                attention += 2 * shape[0] * self.halves * pixels * (pixels + config.past)
        return 2.0 * (products + attention)
