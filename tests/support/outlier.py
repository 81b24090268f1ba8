"""The smallest preset with one layer that 8 bits cannot hold."""

from dataclasses import dataclass
from typing import Any

from random_transformer import random_weights
from torch import Tensor, nn

from vidc.compiler.config.recipe import AttentionFormat, LinearFormat, Recipe, Rule
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.switch import QuantizedLayers
from vidc.compiler.validate.play import Inputs
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.network import CausalWan

BAD = "blocks.1.ffn.net.2"
"""The layer whose input has an outlier."""
OUTLIER = 3000.0
INT8 = LinearFormat("int8", "int8")
IN_BLOCKS = ("blocks.*.attn1.**", "blocks.*.attn2.**", "blocks.*.ffn.**")


def planted(config: CausalVideo) -> dict[str, Tensor]:
    """Random weights with one huge channel between the halves of a feed-forward.

    Its weights are as small as the channel is large: in high precision it is one of many.
    """
    weights = random_weights(config.transformer, 1)
    weights["blocks.1.ffn.net.0.proj.bias"][5] = OUTLIER
    weights[f"{BAD}.weight"][:, 5] /= OUTLIER
    return weights


def recipe_of(
    linear: LinearFormat | None = INT8, attention: AttentionFormat | None = None
) -> Recipe:
    """All Linears of the blocks in one format, and self-attentions in another."""
    linears = () if linear is None else (Rule(IN_BLOCKS, linear),)
    rings = () if attention is None else (Rule(("blocks.*.attn1",), attention),)
    return Recipe("mine", "d", linears, rings)


@dataclass(frozen=True)
class Model:
    """A network with its components, its ranges, and what its rollouts start from."""

    config: CausalVideo
    network: CausalWan
    engines: dict[str, Any]
    calibration: Calibration
    inputs: list[Inputs]

    def layers(self, recipe: Recipe) -> QuantizedLayers:
        """The layers that a recipe quantizes."""
        formats = apply_recipe(recipe, self.config)
        part = self.config.quantized_part
        return QuantizedLayers(part, self.network, formats, self.calibration)

    def linear(self, name: str) -> nn.Linear:
        """A layer."""
        found = self.network.get_submodule(name)
        assert isinstance(found, nn.Linear)
        return found
