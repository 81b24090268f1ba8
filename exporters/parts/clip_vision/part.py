"""Part ``clip_vision``: a CLIP image encoder with the resizing of its input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.clip_vision.config import ClipVisionConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.lazy import LazyTensor
    from vidc.exporters.component import Component


@dataclass(frozen=True)
class ClipVisionPart(Part):
    """A CLIP image encoder for images of one size.

    Attributes:
        config: sizes of the network.
        height: of an image, in pixels.
        width: of an image, in pixels.
    """

    group: ClassVar[str] = "image_encoder"
    config: ClipVisionConfig
    height: int
    width: int

    @property
    def component_names(self) -> tuple[str, ...]:
        """``image_encoder``."""
        return ("image_encoder",)

    def module(self) -> "nn.Module":
        """Returns a ``ClipVision``."""
        from vidc.exporters.parts.clip_vision.network import ClipVision

        return ClipVision(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the component of a ``ClipVision``."""
        from vidc.exporters.parts.clip_vision.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which attention is peaked."""
        from vidc.exporters.parts.spatio_temporal_weights import random_weight

        gain = 1.8 if ".q_proj." in name or ".k_proj." in name else 1.0
        return random_weight(name, shape, seed, gain)

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """None: transformers' configs name no class."""
        return {}

    @property
    def prefixes(self) -> Mapping[str, str]:
        """Its tensors in a file of the whole pipeline."""
        return {"conditioner.embedders.0.open_clip.model.visual.": ""}

    def adapt(self, tensors: "dict[str, LazyTensor]", layout: "Layout") -> "dict[str, LazyTensor]":
        """Gives open_clip's projections the shapes of transformers'."""
        from vidc.exporters.parts.clip_vision.names import OPEN_CLIP, split_projections

        return split_projections(tensors) if layout is OPEN_CLIP else tensors

    @property
    def weights_elements(self) -> int:
        """Elements of the matrices of all layers."""
        sizes = self.config
        return sizes.layers * (4 * sizes.width**2 + 2 * sizes.width * sizes.hidden)

    def flops(self) -> float:
        """Encoding an image: linear layers and attention."""
        sizes = self.config
        linear = 2 * sizes.tokens * self.weights_elements
        return float(linear + 4 * sizes.layers * sizes.tokens**2 * sizes.width)
