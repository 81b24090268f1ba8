"""Split of the keys in two halves for the last wave of query tiles.

A GPU runs one query tile per multiprocessor at a time. A partial last wave takes as long as a full
one. With half of the keys each, twice as many tiles take half as long. The halves are merged by
their softmax denominators, as in Flash-Decoding (https://pytorch.org/blog/flash-decoding).
"""

import torch
from torch import Tensor

LEAST_KEYS = 8192
"""With fewer keys, splitting saves less than merging the halves takes, about 20 us."""


def split_from(tiles: int, rows: int, slots: int, processors: int) -> int:
    """Returns the first query tile of each row with split keys; ``tiles`` if none.

    Args:
        tiles: query tiles of a row.
        rows: batch times heads.
        slots: slots of the ring.
        processors: multiprocessors of the GPU.
    """
    if slots % 2 or slots < LEAST_KEYS:
        return tiles
    whole = tiles * rows // processors
    first = whole * processors // rows
    return first if 2 * (tiles - first) * rows <= processors else tiles


def half_lengths(valid_length: Tensor, half: int, batch: int) -> Tensor:
    """Returns the valid length of each half, int32 ``[2 * batch]``; 1 for an empty half.

    Args:
        valid_length: valid length of the ring, int64 ``[1]``.
        half: slots of a half.
        batch: batch size.
    """
    begins = torch.arange(0, 2 * half, half, device=valid_length.device)
    return (valid_length - begins).clamp(1, half).to(torch.int32).repeat(batch)


def merge_halves(outputs: Tensor, logsumexps: Tensor, valid_length: Tensor, half: int) -> Tensor:
    """Merges the attention outputs of both halves.

    Args:
        outputs: ``[B, 2, T, H, D]``.
        logsumexps: natural logarithms of the softmax denominators, float32 ``[B, 2, H, T]``.
        valid_length: as in ``half_lengths``; the second half is ignored if it is at most ``half``.
        half: slots of a half.

    Returns:
        float32 ``[B, T, H, D]``.
    """
    first, second = logsumexps.transpose(2, 3)[..., None].unbind(1)
    share = torch.sigmoid(second - first) * (valid_length > half)
    return torch.lerp(outputs[:, 0].float(), outputs[:, 1].float(), share)
