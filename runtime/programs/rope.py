"""Rotary embedding of a block of latent frames at absolute positions."""

import torch
from torch import Tensor

from vidc.runtime.programs.stream import StreamSpec

THETA = 10000.0


class Rope:
    """Cosines and sines of the 3D rotary embedding.

    A head's ``D / 2`` channel pairs are split over time, rows and columns as Wan splits them
    (``D / 2 - 2 (D / 6)``, ``D / 6``, ``D / 6``); pair ``i`` of ``n`` on an axis turns by
    ``position * 10000^(-i / n)``. Angles are float64, so the stream's length is not limited.
    """

    def __init__(self, stream: StreamSpec, device: torch.device) -> None:
        pairs = stream.head_dim // 2
        side = pairs // 3
        rows, cols = stream.grid
        self._time = frequencies(pairs - 2 * side).to(device)
        down = torch.outer(torch.arange(rows, dtype=torch.float64), frequencies(side))
        across = torch.outer(torch.arange(cols, dtype=torch.float64), frequencies(side))
        space = torch.cat(
            [
                down[:, None].expand(rows, cols, side),
                across[None, :].expand(rows, cols, side),
            ],
            -1,
        )
        self._space = space.reshape(stream.frame_tokens, 2 * side).to(device)

    def fill(self, cos: Tensor, sin: Tensor, first_frame: Tensor) -> None:
        """Writes cosines and sines of the frames that start at ``first_frame``.

        Args:
            cos: ``[F * frame_tokens, D / 2]`` float32, written.
            sin: as ``cos``.
            first_frame: absolute index of the first latent frame, int64 ``[1]``; read only on the
                device, so that a CUDA graph works at every position.
        """
        tokens = self._space.shape[0]
        count = cos.shape[0] // tokens
        frames = first_frame + torch.arange(count, device=first_frame.device)
        time = torch.outer(frames.double(), self._time)
        angles = torch.cat(
            [
                time[:, None].expand(-1, tokens, -1),
                self._space[None].expand(count, -1, -1),
            ],
            -1,
        ).flatten(0, 1)
        cos.copy_(angles.cos())
        sin.copy_(angles.sin())


def frequencies(pairs: int) -> Tensor:
    """Returns ``10000^(-i / pairs)`` of each channel pair ``i``, float64 ``[pairs]``."""
    return THETA ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
