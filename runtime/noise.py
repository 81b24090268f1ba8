"""Noise that depends only on seed, block and step: the same on every machine and device."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor

_DRAWING = ThreadPoolExecutor(1, thread_name_prefix="vidc-noise")
"""One thread for all sessions, started at the first block of a GPU."""


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

    For a GPU it is drawn in a thread of its own while the device runs the previous block.

    Args:
        seed: of the stream.
        steps: denoising steps of a block.
        shape: of a block's latent, ``[B, F, C, h, w]``.
        device: of the stream.
    """

    def __init__(self, seed: int, steps: int, shape: tuple[int, ...], device: torch.device) -> None:
        self._draw = partial(block_noise, seed, steps=steps, shape=shape)
        self._ahead = device.type == "cuda"
        self._block = -1
        self._noise: Callable[[], Tensor] | None = None
        """Returns the noise of ``_block``, after it has been drawn."""

    def fill(self, target: Tensor, block: int) -> None:
        """Copies a block's noise to ``target``, float32 ``[steps, *shape]`` on the device."""
        if self._noise is None or self._block != block:
            drawn = self._draw(block)
            self._block, self._noise = block, lambda: drawn
        noise = self._noise()
        if target.is_cuda:
            noise = noise.pin_memory()
        # torch reuses pinned memory only after the copy from it is done.
        target.copy_(noise, non_blocking=True)

    def draw_ahead(self, block: int) -> None:
        """Starts to draw a block's noise for a GPU; does nothing on a CPU, which is busy."""
        if self._ahead:
            self._block, self._noise = block, _DRAWING.submit(self._draw, block).result
