from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from vidc.exporters.causal_wan.components import components
from vidc.exporters.causal_wan.model import CausalWan
from vidc.exporters.causal_wan.random_weights import random_weights
from vidc.exporters.component import Component
from vidc.exporters.config import (
    ModelConfig,
    SamplerConfig,
    StreamConfig,
    TransformerConfig,
    VaeConfig,
)


@dataclass
class Wan:
    """A causal Wan transformer of a few thousand parameters with random weights."""

    config: ModelConfig
    network: CausalWan
    components: dict[str, Component]


MakeWan = Callable[..., Wan]


@pytest.fixture(scope="session")
def make_wan() -> MakeWan:
    def make(
        window: int = 6,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> Wan:
        config = ModelConfig(
            TransformerConfig(
                dim=48, ffn_dim=64, heads=2, layers=2, freq_dim=16, text_len=6, text_dim=20
            ),
            VaeConfig(base_dim=8),
            StreamConfig(height=16, width=32, window=window, sink=3, block=3, batch=batch),
            SamplerConfig(),
        )
        with torch.device(device):
            network = CausalWan(config.transformer).to(dtype).requires_grad_(False)
        if device != "meta":
            weights = random_weights(config.transformer, seed=5)
            network.load_state_dict({name: w.to(dtype) for name, w in weights})
        return Wan(config, network, components(config, network))

    return make
