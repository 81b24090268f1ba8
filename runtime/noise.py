"""Noise that depends on seed, block and step alone: the same on every machine and device."""

import numpy as np
import torch
from torch import Tensor


def block_noise(seed: int, block: int, steps: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise of one block, float32 ``[steps, *shape]`` on the CPU.

    Philox counts from ``(0, 0, step, block)`` under the key ``seed``; its bits are the same for
    every version of numpy, which its normal distribution is not, so the Box-Muller transform is
    spelt out here.
    """
    size = int(np.prod(shape))
    drawn = np.empty((steps, size), dtype=np.float32)
    for step in range(steps):
        bits = np.random.Philox(key=seed, counter=[0, 0, step, block])
        uniform = (bits.random_raw(size + size % 2) >> 11) * 2.0**-53
        radius, angle = np.split(uniform, 2)
        # 1 - u lies in (0, 1], where the logarithm is finite.
        radius = np.sqrt(-2.0 * np.log(1.0 - radius))
        angle = 2.0 * np.pi * angle
        drawn[step] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
    return torch.from_numpy(drawn).reshape(steps, *shape)
