"""The public code's caches: cloned, rolled and concatenated in every pass."""

from typing import NamedTuple

import torch
from torch import Tensor

TextCache = dict[str, tuple[Tensor, Tensor]]
"""A layer's keys and values of the prompt, computed by the first pass after it."""


class Slots(NamedTuple):
    """Position of a pass in a layer's cache; everything in tokens.

    Attributes:
        evicted: dropped behind the sink to make room.
        rolled: moved into their place.
        start: first slot that is written.
        end: one behind the last, and behind all that is valid.
        skipped: leading ones of the pass that are not written.
        advances: the pass reaches further than any before it.
    """

    evicted: int
    rolled: int
    start: int
    end: int
    skipped: int
    advances: bool


class Update(NamedTuple):
    """A pass's keys and values ``[B, T, H, D]``, written once the last layer has run."""

    position: int
    slots: Slots
    keys: Tensor
    values: Tensor


class LayerCache:
    """Keys and values of one layer, oldest first, ``[B, window, H, D]`` in tokens.

    The device alone knows how far they reach; the host waits for it at every ``.item()``.
    """

    def __init__(self, keys: Tensor, sink: int) -> None:
        self.keys = keys
        self.values = torch.zeros_like(keys)
        self.sink = sink
        self.seen = torch.tensor([0], dtype=torch.long, device=keys.device)
        """Tokens of the stream so far."""
        self.filled = torch.tensor([0], dtype=torch.long, device=keys.device)
        """Slots that hold one."""

    def place(self, tokens: int, position: int, keep_sink: bool) -> Slots:
        """Slots of ``tokens`` tokens that end at the absolute index ``position``."""
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
        """Writes a pass's keys and values."""
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
