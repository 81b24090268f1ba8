"""Precisions of a network, and loading weights into one."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def with_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The network with these tensors as its parameters; they are not copied."""
    network.load_state_dict(weights, strict=True, assign=True)
    return network.requires_grad_(False)
