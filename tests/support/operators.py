"""Inputs for the fused operators, and how near to a formula in float64 their outputs must be.

Drawn on the CPU, the same ones on every device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.plugins.arguments import dtype_name

FP8 = torch.float8_e4m3fn
EPS = 1e-6
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {
    torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11,
    FP8: 2.0**-4,
}  # fmt: skip
"""Largest relative error of rounding to nearest."""
SMALLEST = {
    torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 2.0**-25, FP8: 2.0**-10,
}  # fmt: skip
"""Half the distance between numbers next to 0."""


def rounded_once(found: Tensor, wanted: Tensor, slack: float | Tensor = 0.0) -> None:
    """Holds an output to a float64 result, rounded once to the output's dtype.

    Args:
        found: the output.
        wanted: what it should be, float64.
        slack: what computing in float32 may add, absolute.
    """
    dtype = found.dtype
    assert torch.isfinite(found.float()).all()
    allowed = 1.01 * ROUNDING[dtype] * wanted.abs() + SMALLEST[dtype] + slack
    excess = (found.double() - wanted).abs() - allowed
    assert excess.max().item() <= 0, f"{excess.max().item()} above what rounding explains"


def draw(seed: int):
    """Draws normal values of a shape, dtype, deviation and mean, one tensor after another."""
    generator = torch.Generator().manual_seed(seed)

    def tensor(*shape, dtype=torch.float32, deviation=1.0, mean=0.0):
        values = torch.randn(shape, generator=generator) * deviation + mean
        return values.to(dtype)

    return tensor


def on(device: torch.device, arguments: dict) -> dict:
    """Copies of the tensors among arguments, as they are strided; everything else as it is."""

    def copy(value):
        if not isinstance(value, Tensor):
            return value
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return made.copy_(value)

    return {name: copy(value) for name, value in arguments.items()}


def gelu_arguments(
    batch=1, tokens=3, width=16, dtype=FLOATS[1], output=FLOATS[1], seed=1, deviation=1.0,
    centered=False,
):  # fmt: skip
    """Arguments of ``gelu_quantize``."""
    tensor = draw(seed)
    return {
        "x": tensor(batch, tokens, width, dtype=dtype, deviation=deviation),
        "dtype": dtype_name(output),
        "output_scale": torch.tensor([0.02]) if output is FP8 else None,
        "output_mean": tensor(width) if centered else None,
    }


def winograd_arguments(
    batch=1, tiles=2, height=3, width=5, channels=32, products=True, biased=True, residual=False,
    seed=1, deviation=1.0, tile=2, keep_sum=None,
):  # fmt: skip
    """Draws arguments of ``norm_silu_winograd``: products of a convolution, or frames.

    Unless ``keep_sum`` is given, the sum is kept where there is a residual.
    """
    draw_one = draw(seed)

    def tensor(*shape):
        return draw_one(*shape, dtype=torch.float16, deviation=deviation)

    size = (height, width, channels)
    frames = (batch, tile * tiles, *size)
    count = tile + 2 if products else 1
    m = [tensor(batch * tiles, *size) if products else tensor(*frames) for _ in range(count)]
    return {
        **{f"m{i}": m[i] if i < count else None for i in range(6)},
        "bias": tensor(channels) if products and biased else None,
        "residual": tensor(*frames) if products and residual else None,
        "gamma": tensor(channels),
        "past": tensor(batch, 2, *size),
        "tile": tile,
        "keep_sum": products and (residual if keep_sum is None else keep_sum),
    }


def sampler_arguments(
    predictions=2, frames=3, size=(4, 2, 3), steps=4, step=1, fresh=False, seed=1, deviation=1.0
):  # fmt: skip
    """Draws arguments of ``sampler_step``."""
    tensor = draw(seed)
    latent = (1, frames, *size)
    channels, *pixels = size
    return {
        "velocity": tensor(predictions, *latent[1:], deviation=deviation),
        "noise": tensor(steps, *latent) if fresh else None,
        "guidance": torch.linspace(1, 3, frames),
        "table": tensor(steps, 5),
        "progress": torch.tensor([step, 0]),
        "latent": tensor(*latent, deviation=deviation),
        "sample": tensor(predictions, frames, 2 * channels, *pixels),
        "timestep": tensor(1),
    }


def group_norm_arguments(
    images=2, pixels=5, channels=32, groups=4, dtype=torch.float16, shifted=True, silu=True,
    seed=1, deviation=1.0, mean=0.0,
):  # fmt: skip
    """Draws arguments of ``group_norm_silu``."""
    tensor = draw(seed)
    return {
        "x": tensor(images, pixels, channels, dtype=dtype, deviation=deviation, mean=mean),
        "shift": tensor(channels, deviation=deviation) if shifted else None,
        "weight": tensor(channels, dtype=dtype, deviation=0.2, mean=1),
        "bias": tensor(channels, dtype=dtype),
        "groups": groups,
        "eps": EPS,
        "silu": silu,
    }


def frame_arguments(
    batch=2, frames=3, pixels=2, heads=2, dtype=torch.float16, seed=1, deviation=1.0
):  # fmt: skip
    """Draws arguments of ``temporal_attention``."""
    tensor = draw(seed)
    shape = (batch, frames, pixels, heads, 64)
    return {
        "query": tensor(*shape, dtype=dtype, deviation=deviation),
        "key": tensor(*shape, dtype=dtype),
        "value": tensor(*shape, dtype=dtype),
    }


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``[B, T, H, D]`` as complex numbers turned by their angles, in float64."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.complex(cos.double(), sin.double())[None, :, None]
    return torch.view_as_real(turned).flatten(-2)


def slot_of(token: int, window: int, sink: int) -> int:
    """Returns the slot of an absolute token."""
    return token if token < sink else sink + (token - sink) % (window - sink)


@dataclass(frozen=True)
class Ring:
    """Sizes of a ring, and where a block begins."""

    batch: int
    tokens: int
    heads: int
    head_dim: int
    window: int
    sink: int
    position: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def slots(self) -> Tensor:
        """Slots of the block's tokens."""
        where = range(self.position, self.position + self.tokens)
        return torch.tensor([slot_of(token, self.window, self.sink) for token in where])


def qkv_arguments(
    ring: Ring, dtype: torch.dtype, seed: int, deviation: float = 1.0
) -> dict[str, object]:
    """Arguments of ``qk_norm_rope_ring_write``; the caches hold values of their own."""
    tensor = draw(seed)
    shape = (ring.batch, ring.window, ring.heads, ring.head_dim)
    angles = tensor(ring.tokens, ring.head_dim // 2, deviation=3).double()
    return {
        "qkv": tensor(ring.batch, ring.tokens, 3 * ring.width, dtype=dtype, deviation=deviation),
        "query_weight": tensor(ring.width, dtype=dtype, deviation=0.2, mean=1),
        "key_weight": tensor(ring.width, dtype=dtype, deviation=0.2, mean=1),
        "cos": angles.cos().float(),
        "sin": angles.sin().float(),
        "position": torch.tensor([ring.position]),
        "key_cache": tensor(*shape, dtype=dtype),
        "value_cache": tensor(*shape, dtype=dtype),
        "sink": ring.sink,
        "eps": EPS,
    }
