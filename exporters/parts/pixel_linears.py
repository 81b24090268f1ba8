"""Linear layers of attention that a checkpoint stores as 1 x 1 convolutions."""

from collections.abc import Mapping

from vidc.exporters.checkpoint.lazy import LazyTensor


def as_linears(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Gives weights ``[C', C, 1, 1]`` of modules ``attentions`` the shape of a linear layer's.

    Args:
        tensors: by diffusers' names.
    """

    def flat(tensor: LazyTensor) -> LazyTensor:
        return LazyTensor(tensor.shape[:2], tensor.dtype, lambda: tensor.load().flatten(1))

    return {
        name: flat(tensor) if ".attentions." in name and tensor.shape[2:] == (1, 1) else tensor
        for name, tensor in tensors.items()
    }
