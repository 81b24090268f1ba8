"""Linear layers that a checkpoint stores one by one and a network computes as one matmul."""

from collections.abc import Sequence

import torch

from vidc.exporters.checkpoint.lazy import LazyTensor


def stack(tensors: Sequence[LazyTensor]) -> LazyTensor:
    """Returns weights or biases of linear layers, concatenated along axis 0 when loaded.

    Args:
        tensors: with one input width; the result has the first one's dtype.
    """
    first = tensors[0]
    rows = sum(tensor.shape[0] for tensor in tensors)

    def load() -> torch.Tensor:
        return torch.cat([tensor.load().to(first.dtype) for tensor in tensors])

    return LazyTensor((rows, *first.shape[1:]), first.dtype, load)
