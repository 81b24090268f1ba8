from collections.abc import Callable

import pytest

from vidc.exporters.config import (
    ModelConfig,
    SamplerConfig,
    StreamConfig,
    TransformerConfig,
    VaeConfig,
)

Configure = Callable[..., ModelConfig]


@pytest.fixture(scope="session")
def configure() -> Configure:
    """Makes a model of 32x48 pixels with a narrow VAE; blocks of ``block`` latent frames."""

    def make(block: int, batch: int = 1) -> ModelConfig:
        return ModelConfig(
            transformer=TransformerConfig(dim=32, ffn_dim=64, heads=2, layers=1),
            vae=VaeConfig(base_dim=8),
            stream=StreamConfig(
                height=32, width=48, window=2 * block, sink=block, block=block, batch=batch
            ),
            sampler=SamplerConfig(),
        )

    return make
