"""KV ring of a self-attention: calibration observes its modules and recipes replace them."""

from typing import cast

import torch
from torch import Tensor, nn

from vidc.plugins.ops.ring import ring_attention, ring_write


class RingStorage(nn.Module):
    """Form in which a ring stores keys or values: unchanged. A recipe replaces it."""

    def forward(self, x: Tensor) -> Tensor:
        """Converts keys or values ``[B, T, H, D]`` to their stored form."""
        return x

    def read(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Converts a stored ring ``[B, S, H, D]`` to the form that attention reads."""
        return stored


class KvRing(nn.Module):
    """Ring of keys and values; the child ``ring`` of every attention that ``Part`` names.

    A recipe replaces ``queries``, ``keys`` and ``values``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queries: nn.Module = nn.Identity()
        self.keys = RingStorage()
        self.values = RingStorage()

    def write(
        self,
        ring: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        position: Tensor,
        sink: int,
    ) -> None:
        """Writes a block's keys and values, each ``[B, T, H, D]``, into their slots, in place.

        Args:
            ring: keys and values of the window, each ``[B, S, H, D]``.
            keys: of the block.
            values: of the block.
            position: absolute index of the first token, int64 ``[1]``.
            sink: in tokens.
        """
        ring_write(ring[0], self.keys(keys), position, sink)
        ring_write(ring[1], self.values(values), position, sink)

    def attend(self, queries: Tensor, ring: tuple[Tensor, Tensor], valid_length: Tensor) -> Tensor:
        """Returns attention of queries ``[B, T, H, D]`` to the first ``valid_length`` slots."""
        keys = self.keys.read(ring[0], queries.dtype)
        values = self.values.read(ring[1], queries.dtype)
        return cast(Tensor, ring_attention(self.queries(queries), keys, values, valid_length))
