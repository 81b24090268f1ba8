"""Noise that depends only on seed, block and step: the same on every machine and device."""

from functools import partial

import numpy as np
import torch
from torch import Tensor


def block_noise(seed: int, block: int, steps: int, shape: tuple[int, ...]) -> Tensor:
    """Returns standard normal noise of one block, float32 ``[steps, *shape]`` on the CPU.

    Philox counts from ``(0, 0, step, block)`` under the key ``seed``. Its bits are the same in
    every version of numpy; numpy's normal distribution is not, so this is Box-Muller.
    """
    size = int(np.prod(shape))
    drawn = np.empty((steps, size), dtype=np.float32)
    for step in range(steps):
        bits = np.random.Philox(key=seed, counter=[0, 0, step, block])
        uniform = (bits.random_raw(size + size % 2) >> 11) * 2.0**-53
        radius, angle = np.split(uniform, 2)
        # 1 - u is in (0, 1], where the logarithm is finite.
        radius = np.sqrt(-2.0 * np.log(1.0 - radius))
        angle = 2.0 * np.pi * angle
        drawn[step] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
    return torch.from_numpy(drawn).reshape(steps, *shape)


class NoiseSource:
    """Noise of one stream's blocks.

    For a GPU it is drawn into pinned memory while the device runs the previous block.

    Args:
        seed: of the stream.
        steps: denoising steps of a block.
        shape: of a block's latent, ``[B, F, C, h, w]``.
        device: of the stream.
    """

    def __init__(self, seed: int, steps: int, shape: tuple[int, ...], device: torch.device) -> None:
        self._draw = partial(block_noise, seed, steps=steps, shape=shape)
        self._ahead = device.type == "cuda"
        self._drawn: tuple[int, Tensor] | None = None

    def fill(self, target: Tensor, block: int) -> None:
        """Copies a block's noise to ``target``, float32 ``[steps, *shape]`` on the device."""
        if self._drawn is None or self._drawn[0] != block:
            self._drawn = block, self._draw(block)
        # torch reuses pinned memory only after the copy from it is done.
        target.copy_(self._drawn[1], non_blocking=True)

    def draw_ahead(self, block: int) -> None:
        """Draws a block's noise in advance on a GPU; does nothing on a CPU."""
        if self._ahead:
            self._drawn = block, self._draw(block).pin_memory()
