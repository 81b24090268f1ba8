import pytest

from vidc.exporters.config import (
    ModelConfig,
    SamplerConfig,
    StreamConfig,
    TransformerConfig,
    VaeConfig,
)


@pytest.fixture
def small():
    """Makes a model configuration of a few thousand parameters; keywords go to the stream."""

    def make(**stream) -> ModelConfig:
        sizes = {"height": 32, "width": 48, "window": 12, "sink": 3, "block": 3} | stream
        return ModelConfig(
            TransformerConfig(
                dim=48, ffn_dim=96, heads=2, layers=2, freq_dim=16, text_len=6, text_dim=20
            ),
            VaeConfig(base_dim=8),
            StreamConfig(**sizes),
            SamplerConfig(),
        )

    return make
