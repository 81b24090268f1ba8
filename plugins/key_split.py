"""Keys in two halves for the last queries, where a GPU would be left half empty by them.

A GPU runs as many tiles of queries at a time as it has multiprocessors. What is left after the last
full turn takes as long as a full one, however little it is; over half of the keys each, twice as
many tiles take half as long. The halves are joined by their softmax's denominators, as in
Flash-Decoding (https://pytorch.org/blog/flash-decoding).
"""

import torch
from torch import Tensor

LEAST_KEYS = 8192
"""With fewer, half a turn is worth less than joining halves costs: about 20 us."""


def split_from(tiles: int, rows: int, slots: int, processors: int) -> int:
    """The first tile of queries, of each row, whose keys are halved; ``tiles`` if none is.

    Args:
        tiles: of queries, of a row.
        rows: batch times heads.
        slots: of the ring.
        processors: tiles that run at a time.
    """
    if slots % 2 or slots < LEAST_KEYS:
        return tiles
    whole = tiles * rows // processors
    first = whole * processors // rows
    return first if 2 * (tiles - first) * rows <= processors else tiles


def half_lengths(valid_length: Tensor, half: int, batch: int) -> Tensor:
    """How many keys of either half count, int32 ``[2 * batch]``; of an empty half one does.

    Args:
        valid_length: of both halves, int64 ``[1]``.
        half: slots.
        batch: rows of the ring.
    """
    begins = torch.arange(0, 2 * half, half, device=valid_length.device)
    return (valid_length - begins).clamp(1, half).to(torch.int32).repeat(batch)


def joined(outputs: Tensor, logsumexps: Tensor, valid_length: Tensor, half: int) -> Tensor:
    """Attention over both halves, from attention over either.

    Args:
        outputs: ``[B, 2, T, H, D]``.
        logsumexps: natural logarithms of the softmax's denominators, float32 ``[B, 2, H, T]``.
        valid_length: as in ``half_lengths``; with ``half`` or less the second half does not count.
        half: slots.

    Returns:
        float32 ``[B, T, H, D]``.
    """
    first, second = logsumexps.transpose(2, 3)[..., None].unbind(1)
    share = torch.sigmoid(second - first) * (valid_length > half)
    return torch.lerp(outputs[:, 0].float(), outputs[:, 1].float(), share)
