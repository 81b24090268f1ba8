"""A small transformer with random weights, its components, and what they are given."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from random_transformer import random_weights
from torch import Tensor

from vidc.compiler.config.resolve import resolve
from vidc.exporters.component import Component
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.plugins.signature import Role, Signature

COMPONENTS = ("denoise", "kv_update", "recache_9")
"""Those of the transformer that write the ring."""


@dataclass(frozen=True)
class Model:
    config: CausalVideo
    weights: dict[str, Tensor]

    def component(self, name: str, precision: str) -> Component:
        """With weights rounded to a precision; those of ``weights`` are float32."""
        dtype = PRECISIONS[precision]
        tensors = {key: value.to(dtype) for key, value in self.weights.items()}
        network = with_weights(self.config.parts["transformer"].network(precision), tensors)
        return self.config.parts["transformer"].components(network)[name]


def model(*assignments: str) -> Model:
    config = resolve("tiny", assignments=assignments, environ={}, engines=False).model
    return Model(config, random_weights(config.transformer, 1))


def blocks(signature: Signature, position: int, count: int = 3) -> Iterator[dict[str, Tensor]]:
    """Inputs of consecutive runs of a component, of which the first is at a token."""
    window = next(s.shape[1] for s in signature.states if s.name.startswith("ring."))
    for block in range(count):
        generator = torch.Generator().manual_seed(block)
        given = {
            spec.name: torch.randn(spec.shape, generator=generator)
            for spec in signature.inputs
            if spec.dtype == "float32"
        }
        given["timestep"] = given["timestep"].abs() * 500
        angles = given["rope_cos"]
        given["rope_cos"], given["rope_sin"] = angles.cos(), angles.sin()
        tokens = angles.shape[0]
        start = position + block * tokens
        given["position"] = torch.tensor([start])
        given["valid_length"] = torch.tensor([min(start + tokens, window)])
        yield given


def filled(signature: Signature, seed: int = 9) -> dict[str, Tensor]:
    """Values of a component's states, as other blocks and the prompt would leave them."""
    generator = torch.Generator().manual_seed(seed)
    return {
        spec.name: torch.randn(spec.shape, generator=generator).to(spec.torch_dtype)
        for spec in signature.tensors
        if spec.role is Role.STATE
    }
