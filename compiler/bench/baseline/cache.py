"""The public code's caches: cloned, rolled and concatenated in every pass."""

from typing import NamedTuple

import torch
from torch import Tensor


class Slots(NamedTuple):
    """Where a pass goes in a layer's cache; everything in tokens.

    Attributes:
        evicted: dropped behind the sink to make room.
        rolled: moved into their place.
        start: first slot that is written.
        end: one behind the last, and behind all that is valid.
        skipped: leading ones of the pass that are not written.
        advances: whether the pass reaches further than any before it.
    """

    evicted: int
    rolled: int
    start: int
    end: int
    skipped: int
    advances: bool


class Update(NamedTuple):
    """What a pass leaves in a layer's cache, written once the last layer has run.

    Attributes:
        position: absolute index behind the pass's last token.
        slots: where keys and values go.
        keys: ``[B, T, H, D]``.
        values: the same.
    """

    position: int
    slots: Slots
    keys: Tensor
    values: Tensor


class LayerCache:
    """Keys and values of one layer, oldest first.

    How far they reach is known to the device alone; the host waits for it at every ``.item()``.

    Args:
        shape: ``[B, window, H, D]`` of keys and of values, the window in tokens.
        sink: tokens that are never rolled out.
        dtype: of keys and values.
        device: that holds them.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], sink: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.sink = sink
        self.seen = torch.tensor([0], dtype=torch.long, device=device)
        """Tokens of the stream so far."""
        self.filled = torch.tensor([0], dtype=torch.long, device=device)
        """Slots that hold one."""

    def place(self, tokens: int, position: int, keep_sink: bool) -> Slots:
        """Where ``tokens`` tokens go that end at the absolute index ``position``."""
        size = self.keys.shape[1]
        evicted = rolled = 0
        # Every read is one of the public code's, repetitions included: each costs a wait.
        advances = position > int(self.seen.item())
        if position > int(self.seen.item()) and tokens + int(self.filled.item()) > size:
            evicted = tokens + int(self.filled.item()) - size
            rolled = int(self.filled.item()) - evicted - self.sink
        end = int(self.filled.item()) + position - int(self.seen.item()) - evicted
        start = end - tokens
        skipped = max(0, self.sink - start) if keep_sink else 0
        return Slots(evicted, rolled, start + skipped, end, skipped, advances)

    def extended(self, slots: Slots, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that a pass attends to, ``[B, end, H, D]``, in memory of their own."""
        all_keys, all_values = self.keys.clone(), self.values.clone()
        self._insert(all_keys, keys, slots)
        self._insert(all_values, values, slots)
        return self._valid(all_keys, slots.end), self._valid(all_values, slots.end)

    def apply(self, update: Update) -> None:
        """Takes what a pass left."""
        self._insert(self.keys, update.keys, update.slots)
        self._insert(self.values, update.values, update.slots)
        if update.slots.advances:
            self.seen.fill_(update.position)
            self.filled.fill_(update.slots.end)

    def _insert(self, cache: Tensor, new: Tensor, slots: Slots) -> None:
        sink, source = self.sink, self.sink + slots.evicted
        if slots.evicted > 0:
            cache[:, sink : sink + slots.rolled] = cache[:, source : source + slots.rolled].clone()
        if slots.end > slots.start:
            cache[:, slots.start : slots.end] = new

    def _valid(self, cache: Tensor, end: int) -> Tensor:
        if self.sink == 0 or end < self.sink:
            return cache[:, :end]
        return torch.cat([cache[:, : self.sink], cache[:, self.sink : end]], 1)


class TextCache:
    """Cross-attention keys and values of one layer, computed by the first pass after a prompt."""

    def __init__(self) -> None:
        self.computed: tuple[Tensor, Tensor] | None = None

    def clear(self) -> None:
        """Forgets the prompt."""
        self.computed = None
