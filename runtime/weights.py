"""Weights of a bundle: loaded once per device and shared by all engines."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vidc.plugins.errors import GateError
from vidc.runtime.document import AGAIN

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Channels-last memory format of a convolution weight, by number of dimensions."""


class Weights:
    """Tensors named ``<weights file>.<key>``, memory-mapped until first use.

    Args:
        files: paths of the safetensors files by stem.
        device: device of the tensors.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, a file is not of safetensors.
    """

    def __init__(self, files: Mapping[str, Path | str], device: torch.device) -> None:
        self._handles = {stem: _open(stem, path, device) for stem, path in files.items()}
        self._loaded: dict[tuple[str, bool], Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.get(name)

    def get(self, name: str, channels_last: bool = False) -> Tensor:
        """Returns a tensor as stored, or a convolution weight in channels-last format.

        Raises:
            KeyError: there is none of this name, or it is no convolution weight.
        """
        if (name, channels_last) not in self._loaded:
            stem, _, key = name.partition(".")
            try:
                tensor = self._handles[stem].get_tensor(key)
            except SafetensorError as error:
                raise KeyError(name) from error
            if channels_last:
                if tensor.dim() not in CHANNELS_LAST:
                    raise KeyError(name)
                tensor = tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim()])
            self._loaded[name, channels_last] = tensor
        return self._loaded[name, channels_last]

    def packed(self, name: str, parts: Sequence[str]) -> Tensor:
        """Returns tensors concatenated along their first axis, under their own name.

        Later lookups of a part return a view, so that the device has one copy.

        Raises:
            KeyError: their shapes or dtypes do not match.
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

    def product(self, name: str, first: str, second: str) -> Tensor:
        """Returns the element-wise product of two tensors, under its own name.

        Raises:
            KeyError: there is no such tensor, or their shapes do not match.
        """
        if (name, False) not in self._loaded:
            try:
                self._loaded[name, False] = self.get(first) * self.get(second)
            except RuntimeError as error:
                raise KeyError(name) from error
        return self._loaded[name, False]


def _open(stem: str, path: Path | str, device: torch.device) -> Any:
    try:
        return safe_open(str(path), framework="pt", device=str(device))
    except RuntimeError as error:  # Such as too many open files.
        raise GateError(
            "VIDC-BUNDLE-UNREADABLE",
            f"weights {stem} cannot be read: {str(error)[:200]}",
            "check the file's permissions, the disk and the limit of open files (ulimit -n)",
        ) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"weights {stem} are not a file of safetensors: {str(error)[:200]}",
            AGAIN,
        ) from error
