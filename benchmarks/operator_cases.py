"""Cases of ``benchmarks/fused_operators.py``: their type, and those of a clip at SVD's sizes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from turns import Arguments

from vidc.plugins.ops.group_norm_silu import group_norm_silu, group_norm_silu_reference
from vidc.plugins.ops.sampler_step import sampler_step, sampler_step_reference
from vidc.plugins.ops.temporal_attention import temporal_attention, temporal_attention_reference

HALF = torch.float16
GROUPS, HEAD_DIM, STEPS = 32, 64, 25


@dataclass(frozen=True)
class Case:
    """An operator, its reference, and arguments of one set of buffers.

    Attributes:
        name: of the operator and its form.
        operator: the kernel on a GPU.
        reference: the same in plain PyTorch.
        make: draws the arguments.
        moved: bytes that have to be read and written.
        rivals: other ways to do the same, called as they are.
    """

    name: str
    operator: Callable[..., Any]
    reference: Callable[..., Any]
    make: Callable[[], Arguments]
    moved: int
    rivals: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClipSizes:
    """Sizes of a clip whose guidance is a batch of two."""

    frames: int = 14
    height: int = 72
    width: int = 128
    channels: int = 320

    @property
    def pixels(self) -> int:
        return self.height * self.width


SMALL_CLIP = ClipSizes(frames=3, height=4, width=6, channels=64)


def clip_cases(sizes: ClipSizes, device: torch.device) -> Iterator[Case]:
    """The operators of a clip: its sampler, and the first resolution of its network."""
    images, latent = 2 * sizes.frames, (4, sizes.height, sizes.width)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    def step() -> Arguments:
        return (
            draw(2, sizes.frames, *latent), None, draw(sizes.frames), draw(STEPS, 5),
            torch.zeros(2, dtype=torch.int64, device=device), draw(1, sizes.frames, *latent),
            draw(2, sizes.frames, 2 * latent[0], *latent[1:]), draw(1),
        )  # fmt: skip

    # Read: two predictions and the latent. Written: the latent, and half of two inputs.
    elements = sizes.frames * 4 * sizes.pixels
    yield Case(
        "sampler_step", sampler_step, sampler_step_reference, step, 6 * 4 * elements,
        {"eager": sampler_step_reference},
    )  # fmt: skip
    shapes = {
        "each frame": (images, sizes.pixels),
        "all frames": (2, sizes.frames * sizes.pixels),
    }
    for name, (count, pixels) in shapes.items():

        def norm(count: int = count, pixels: int = pixels) -> Arguments:
            x = draw(count, pixels, sizes.channels, dtype=HALF)
            vectors = (draw(sizes.channels, dtype=HALF), draw(sizes.channels, dtype=HALF))
            return (x, draw(sizes.channels), *vectors, GROUPS, 1e-6, True)

        # The input is read for its statistics and once more.
        yield Case(
            f"group_norm_silu of {name}", group_norm_silu, group_norm_silu_reference, norm,
            3 * 2 * count * pixels * sizes.channels, {"eager": _eager_norm},
        )  # fmt: skip

    heads = sizes.channels // HEAD_DIM

    def attended(apart: bool) -> Arguments:
        shape = (2, sizes.frames, sizes.pixels) if apart else (2 * sizes.pixels, sizes.frames, 1)
        return tuple(draw(*shape, heads, HEAD_DIM, dtype=HALF) for _ in range(3))

    for apart in (False, True):
        yield Case(
            f"temporal_attention, frames {'apart' if apart else 'next to each other'}",
            temporal_attention, temporal_attention_reference, partial(attended, apart),
            4 * 2 * images * sizes.pixels * sizes.channels, {"sdpa": _sdpa},
        )  # fmt: skip


def _eager_norm(
    x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, silu: bool
) -> Tensor:
    """PyTorch's own kernels on channels-last images."""
    images = (x + shift.to(x.dtype)).transpose(1, 2)[..., None]
    return functional.silu(functional.group_norm(images, groups, weight, bias, eps))


def _sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's attention, frame by frame next to each other."""
    by_pixel = (x.transpose(1, 2).flatten(0, 1).transpose(1, 2) for x in (query, key, value))
    q, k, v = by_pixel
    return functional.scaled_dot_product_attention(q, k, v)
