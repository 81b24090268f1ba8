"""A transformer over bf16 copies of its weights: as a bundle for a GPU, with gradients."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.func import functional_call

from vidc.exporters.parts.causal_wan.network import CausalWan

Result = TypeVar("Result")


class _Use(nn.Module):
    """Hands a network to a function, because ``functional_call`` calls modules alone."""

    def __init__(self, network: CausalWan) -> None:
        super().__init__()
        self.network = network

    def forward(self, use: Callable[[CausalWan], Result]) -> Result:
        return use(self.network)


def in_bf16(network: CausalWan, use: Callable[[CausalWan], Result]) -> Result:
    """What ``use`` makes of a network whose weights are bf16 copies, through which it is taught.

    They are copied once, however often the network runs inside: under autocast a step of many
    short passes spends most of its time on copies. Sums stay in float32, as the network has them.
    """
    copies = {f"network.{name}": p.bfloat16() for name, p in network.named_parameters()}
    result: Result = functional_call(_Use(network), copies, (use,))
    return result


def lowered(network: CausalWan, device: str, use: Callable[[CausalWan], Result]) -> Result:
    """``in_bf16`` on a GPU; elsewhere ``use`` takes the network as it is."""
    return in_bf16(network, use) if device.startswith("cuda") else use(network)


def frozen(network: CausalWan, device: str) -> CausalWan:
    """A network that is not taught, in the precision of ``lowered``."""
    return network.to(torch.bfloat16) if device.startswith("cuda") else network
