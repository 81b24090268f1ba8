"""A bundle's weights: loaded once a device, shared by every engine that takes them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor


class Weights:
    """Tensors named ``<weights file>.<key>``, memory-mapped until an engine asks for them."""

    def __init__(self, files: Mapping[str, Path], device: torch.device) -> None:
        self._handles = {
            stem: safe_open(str(path), framework="pt", device=str(device))
            for stem, path in files.items()
        }
        self._loaded: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._loaded:
            stem, _, key = name.partition(".")
            self._loaded[name] = self._handles[stem].get_tensor(key)
        return self._loaded[name]
