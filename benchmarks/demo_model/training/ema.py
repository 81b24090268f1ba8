"""A running mean of weights, which is what is kept of a training."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """An exponential mean of a network's parameters, float32, on their device.

    Args:
        network: whose parameters; it has no buffers that change.
        decay: of the mean in the long run; earlier it spans a tenth of the steps so far.
    """

    def __init__(self, network: nn.Module, decay: float = 0.999) -> None:
        self._parameters = dict(network.named_parameters())
        self._decay = decay
        self.mean = {name: p.detach().float().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the parameters after step ``step``, which counts from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        current = [p.detach().float() for p in self._parameters.values()]
        torch._foreach_lerp_(list(self.mean.values()), current, 1 - decay)

    def load(self, mean: Mapping[str, Tensor]) -> None:
        """Takes over a saved mean.

        Raises:
            KeyError: it is of another network.
        """
        for name, kept in self.mean.items():
            kept.copy_(mean[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network has the mean for its parameters inside, and its own again after."""
        own = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._set(self.mean)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])
