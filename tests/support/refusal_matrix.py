"""Refusals of every operator's every tensor: its dtype, shape, layout, alignment and device."""

from collections.abc import Callable, Iterator

import torch
from refusals import OPERATORS, Refusal
from torch import Tensor

from vidc.plugins.arguments import dtype_name

INTEGERS = frozenset({"position", "valid_length", "progress"})


def tensors() -> Iterator[tuple[str, str, Tensor]]:
    """Each operator, by the name of its case, with each of its tensors."""
    for name, (_, arguments) in OPERATORS.items():
        for argument, value in arguments().items():
            if isinstance(value, Tensor):
                yield name, argument, value


def _apart(tensor: Tensor) -> Tensor:
    """The same, with as much memory behind each element."""
    strides = [2 * stride for stride in tensor.contiguous().stride()]
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _misaligned(tensor: Tensor) -> Tensor:
    memory = torch.empty(tensor.nbytes + 24, dtype=torch.int8)
    start = -memory.data_ptr() % 16 + tensor.itemsize
    view = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return view.copy_(tensor)


def _to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype)


def kinds() -> Iterator[Refusal]:
    """Refusals of another dtype and of another number of dimensions, in traces too."""
    for name, argument, tensor in tensors():
        wrong = torch.float32 if argument in INTEGERS else torch.int64
        said = f"{argument}: expected "
        yield Refusal(name, argument, _to(wrong), said, f", found {dtype_name(wrong)}")
        shape = [1, *tensor.shape]
        yield Refusal(name, argument, lambda t: t[None], said, f", found {shape}")


def memory() -> Iterator[Refusal]:
    """Refusals of another layout or alignment, by kernels alone. One number has neither."""
    for name, argument, tensor in tensors():
        if tensor.numel() == 1:
            continue
        apart = f", found strides {[2 * stride for stride in tensor.contiguous().stride()]}"
        yield Refusal(name, argument, _apart, f"{argument}: expected a contiguous tensor", apart)
        aligned = f"{argument}: expected memory aligned to 16 bytes, found 0x"
        yield Refusal(name, argument, _misaligned, aligned)


KINDS = list(kinds())
MEMORY = list(memory())
ELSEWHERE = [
    Refusal(name, next(iter(arguments())), lambda t: t,
            f"{next(iter(arguments()))}: expected a CUDA device", ", found cpu")
    for name, (_, arguments) in OPERATORS.items()
]  # fmt: skip
"""The operator as it is on a CPU, where kernels are called by themselves."""
