"""A bundle's weights: loaded once a device, shared by every engine that takes them."""

from collections.abc import Mapping, Sequence
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

    def packed(self, name: str, parts: Sequence[str]) -> Tensor:
        """Tensors one after the other along their first axis, under a name of their own.

        Who asks for one of them later gets a view into it, so that they are on the device once.

        Raises:
            KeyError: they do not fit together.
        """
        if (name, False) not in self._loaded:
            tensors = [self.get(part) for part in parts]
            if len({(tensor.dtype, tensor.shape[1:]) for tensor in tensors}) != 1:
                raise KeyError(name)
            whole = torch.cat(tensors)
            start = 0
            for part in parts:
                end = start + self._loaded[part, False].shape[0]
                self._loaded[part, False] = whole[start:end]
                start = end
            self._loaded[name, False] = whole
        return self._loaded[name, False]
