"""Values of a transposed ring: keys in the order in which a matrix instruction wants them.

In ``[B, H, D, S]``, as matrix instructions of 8 bits have it, the index that is summed over is
contiguous. Within each 16 slots it is permuted: what a thread holds of the softmax's probabilities
for two neighboring 8-slot tiles is then what it multiplies four neighboring bytes with.
"""

import torch
from torch import Tensor

GROUP = 16
ORDER = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
"""Which slot of a group is stored at each of its positions."""


def stored_at(slots: Tensor) -> Tensor:
    """Where slots are along the last dimension of a transposed ring, int64 like them."""
    positions = torch.tensor(ORDER, device=slots.device).argsort()
    return slots // GROUP * GROUP + positions[slots % GROUP]
