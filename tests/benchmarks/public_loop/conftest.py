"""The smallest model with a VAE, its random weights, and the public code's loop on them."""

from dataclasses import dataclass

import pytest
import torch
from public_loop.loop import PublicLoop, PublicStream
from random_transformer import random_weights
from torch import Tensor

from vidc.exporters.families.causal_video import CausalVideo, SamplerConfig, StreamConfig
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict

STREAM = {"height": 32, "width": 48, "window": 12, "sink": 3, "block": 3}


@dataclass(frozen=True)
class Model:
    config: CausalVideo
    transformer: dict[str, Tensor]
    vae: dict[str, Tensor]

    def loop(self, backend=None) -> PublicLoop:
        return PublicLoop(self.config, self.transformer, self.vae, backend)

    def session(self, prompt: int = 1) -> PublicStream:
        session = self.loop().session()
        session.prompt(self.embeds(prompt))
        return session

    def embeds(self, seed: int) -> Tensor:
        sizes = self.config.transformer
        generator = torch.Generator().manual_seed(seed)
        shape = (self.config.stream.batch, sizes.text_len, sizes.text_dim)
        return torch.randn(shape, generator=generator)

    def noises(self, blocks: int) -> Tensor:
        config = self.config
        generator = torch.Generator().manual_seed(9)
        shape = (len(config.sampler.steps), config.stream.batch, config.stream.block, 16)
        return torch.randn(blocks, *shape, *config.latent_size, generator=generator)


@pytest.fixture(scope="session")
def make_model():
    def make(dtype=torch.float32, **stream: int) -> Model:
        config = CausalVideo(
            TransformerConfig(
                dim=48, ffn_dim=96, heads=2, layers=2, freq_dim=16, text_len=6, text_dim=20
            ),
            VaeConfig(base_dim=8),
            StreamConfig(**STREAM | stream),
            SamplerConfig(),
        )
        return Model(
            config,
            {name: w.to(dtype) for name, w in random_weights(config.transformer, seed=3).items()},
            random_state_dict(config.vae, 3, dtype),
        )

    return make
