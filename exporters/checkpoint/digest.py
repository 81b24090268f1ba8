"""A digest of weights that no precision, file format or naming of a checkpoint changes."""

import hashlib
import json
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from vidc.exporters.checkpoint.lazy import LazyTensor


class Digests:
    """Digests tensors as they are loaded for another purpose, so that none is read twice.

    Args:
        tensors: by canonical name.

    Attributes:
        tensors: the same; loading one takes its digest.
    """

    def __init__(self, tensors: Mapping[str, LazyTensor]) -> None:
        self._digests: dict[str, str | None] = dict.fromkeys(tensors)
        self.tensors = {
            name: LazyTensor(tensor.shape, tensor.dtype, partial(self._load, name, tensor))
            for name, tensor in tensors.items()
        }

    def digest(self) -> str:
        """Hex SHA-256 over every tensor's name, shape and values as float32.

        Raises:
            ValueError: a tensor was not loaded.
        """
        missing = [name for name, digest in self._digests.items() if digest is None]
        if missing:
            raise ValueError(f"not loaded: {', '.join(missing[:4])}")
        return hashlib.sha256(json.dumps(self._digests, sort_keys=True).encode()).hexdigest()

    def _load(self, name: str, tensor: LazyTensor) -> Tensor:
        values = tensor.load()
        exact = values.to(torch.float32).contiguous().reshape(-1).view(torch.uint8)
        digest = hashlib.sha256(json.dumps(list(tensor.shape)).encode())
        digest.update(exact.numpy().data)
        self._digests[name] = digest.hexdigest()
        return values
