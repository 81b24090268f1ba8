"""Random weights of a causal Wan transformer."""

import torch
from torch import Tensor

from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.causal_wan.random_weights import random_weight


def random_weights(config: TransformerConfig, seed: int) -> dict[str, Tensor]:
    """Returns every parameter of the transformer, float32."""
    with torch.device("meta"):
        model = CausalWan(config)
    return {name: random_weight(name, w.shape, seed) for name, w in model.named_parameters()}
