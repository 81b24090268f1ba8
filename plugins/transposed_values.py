"""Order of slots in a transposed value ring, ``[B, H, D, S']``.

8-bit matrix instructions need the reduced index, the slot, to be contiguous. Slots are permuted
within each 16: a thread's softmax weights for two neighboring 8-slot tiles are then the operand for
four neighboring bytes of the values. Slots are padded to whole groups; nothing writes the padding.
"""

import torch
from torch import Tensor

GROUP = 16
ORDER = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
"""Slot of a group at each position."""


def padded_slots(slots: int) -> int:
    """Returns the slots of a transposed ring: those of the ring, rounded up to whole groups."""
    return -(-slots // GROUP) * GROUP


def stored_at(slots: Tensor) -> Tensor:
    """Returns the positions of slots along the last dimension of a transposed ring, int64."""
    positions = torch.tensor(ORDER, device=slots.device).argsort()
    return slots // GROUP * GROUP + positions[slots % GROUP]
