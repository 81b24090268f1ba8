"""The networks of a configured model and the components they are run as."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vidc.exporters.causal_wan.components import components as wan_components
from vidc.exporters.causal_wan.model import CausalWan
from vidc.exporters.component import Component
from vidc.exporters.config import ModelConfig
from vidc.exporters.text_encoder.model import component as text_component
from vidc.exporters.text_encoder.model import create as create_text_encoder
from vidc.exporters.wan_vae.model import components as vae_components
from vidc.exporters.wan_vae.model import create as create_vae

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def meta_network(config: ModelConfig, group: str, precision: str) -> nn.Module:
    """The network of a weights group on the meta device."""
    dtype = PRECISIONS[precision]
    if group == "vae":
        return create_vae(config.vae, dtype, "meta")
    if group == "text_encoder":
        assert config.text_encoder is not None
        return create_text_encoder(config.text_encoder, dtype, "meta")
    with torch.device("meta"):
        return CausalWan(config.transformer).to(dtype).requires_grad_(False)


def with_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The network with these tensors as its parameters; they are not copied."""
    network.load_state_dict(weights, strict=True, assign=True)
    return network.requires_grad_(False)


def components(
    config: ModelConfig, group: str, network: nn.Module, precision: str
) -> dict[str, Component]:
    """The components that run on a weights group's network, by name."""
    if group == "vae":
        return vae_components(config, network, PRECISIONS[precision])
    if group == "text_encoder":
        return {"text_encoder": text_component(config, network)}
    assert isinstance(network, CausalWan)
    return wan_components(config, network)
