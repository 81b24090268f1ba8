"""A bundle's weights: loaded once a device, shared by every engine that takes them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format of a convolution's weight, by its dimensions."""


class Weights:
    """Tensors named ``<weights file>.<key>``, memory-mapped until an engine asks for them."""

    def __init__(self, files: Mapping[str, Path], device: torch.device) -> None:
        self._handles = {
            stem: safe_open(str(path), framework="pt", device=str(device))
            for stem, path in files.items()
        }
        self._loaded: dict[tuple[str, bool], Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.get(name)

    def get(self, name: str, channels_last: bool = False) -> Tensor:
        """A tensor as it is stored, or a convolution's weight with its channels last in memory."""
        if (name, channels_last) not in self._loaded:
            stem, _, key = name.partition(".")
            tensor = self._handles[stem].get_tensor(key)
            if channels_last:
                tensor = tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim()])
            self._loaded[name, channels_last] = tensor
        return self._loaded[name, channels_last]
