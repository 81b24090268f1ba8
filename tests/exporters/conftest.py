from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from random_transformer import random_weights

from vidc.exporters.component import Component
from vidc.exporters.families.causal_video import CausalVideo, SamplerConfig, StreamConfig
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.wan_vae.config import VaeConfig

SIZES = {"dim": 48, "ffn_dim": 96, "heads": 2, "layers": 2, "freq_dim": 16}
TEXT = {"text_len": 6, "text_dim": 20}
STREAM = {"height": 32, "width": 48, "window": 12, "sink": 3, "block": 3}
Configure = Callable[..., CausalVideo]


@pytest.fixture(scope="session")
def configure() -> Configure:
    """Makes a model of a few thousand parameters; keywords go to the stream, or to the text."""

    def make(**changes: int) -> CausalVideo:
        text = {name: changes.pop(name, size) for name, size in TEXT.items()}
        return CausalVideo(
            TransformerConfig(**SIZES, **text),
            VaeConfig(base_dim=8),
            StreamConfig(**STREAM | changes),
            SamplerConfig(),
        )

    return make


@dataclass
class Wan:
    """A causal Wan transformer of a few thousand parameters with random weights."""

    config: CausalVideo
    network: CausalWan
    components: dict[str, Component]


MakeWan = Callable[..., Wan]


@pytest.fixture(scope="session")
def make_wan(configure: Configure) -> MakeWan:
    def make(
        window: int = 6,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> Wan:
        config = configure(height=16, width=32, window=window, batch=batch)
        with torch.device(device):
            network = CausalWan(config.transformer).to(dtype).requires_grad_(False)
        if device != "meta":
            weights = random_weights(config.transformer, seed=5)
            network.load_state_dict({name: w.to(dtype) for name, w in weights.items()})
        return Wan(config, network, config.transformer_part.components(network))

    return make
