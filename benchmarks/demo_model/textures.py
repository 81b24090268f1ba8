"""Grounds with real detail: noise between two wavelengths, weaves and brickwork.

A ground's detail is what has a wavelength of 8 pixels or less, and its standard deviation is set
to ``DETAIL`` rather than hoped for. Most of it lies between 5 and 8 pixels or along one axis:
noise of finer grain has more values than the latents of a VAE with a stride of 8, so that no
decoder could return it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from demo_model.attributes import Background
from demo_model.palette import GROUNDS

DETAIL = 0.15
"""Standard deviation of wavelengths of at most ``DETAIL_WAVELENGTH``, where RGB is -1..1.

Where it is 0..1 that is 0.075: the 0.1 that are asked are met in -1..1, in which videos are.
"""

DETAIL_WAVELENGTH = 8.0
"""Pixels."""

COARSE: Mapping[Background, float] = MappingProxyType(
    {
        Background.SAND: 0.06,
        Background.GRASS: 0.07,
        Background.WOOD: 0.08,
        Background.STONE: 0.09,
        Background.CLOTH: 0.03,
        Background.BRICK: 0.05,
    }
)
"""Standard deviation of longer wavelengths, in the same units."""


def grounds(
    backgrounds: Sequence[Background],
    seeds: Sequence[int],
    height: int,
    width: int,
    device: torch.device,
) -> Tensor:
    """Pictures of backgrounds, float32 ``[B, H, W, 3]`` in 0..1; noise is drawn on the CPU."""
    noise, phases = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        noise.append(torch.randn(height, width, generator=generator))
        phases.append(torch.rand(2, generator=generator))
    white = torch.stack(noise).to(device)
    fy = torch.fft.fftfreq(height, device=device)[:, None]
    fx = torch.fft.rfftfreq(width, device=device)[None, :]
    spectrum = torch.fft.rfft2(white)
    shaped = torch.stack([_NOISE[b](fx.abs(), fy.abs()) for b in backgrounds]) * spectrum
    with_pattern = [i for i, background in enumerate(backgrounds) if background in _PATTERN]
    if with_pattern:
        y = torch.arange(height, device=device)[:, None].float()
        x = torch.arange(width, device=device)[None, :].float()
        drawn = [_PATTERN[backgrounds[i]](x, y, *phases[i].tolist()) for i in with_pattern]
        pattern = torch.zeros_like(white)
        pattern[with_pattern] = torch.stack(drawn)
        spread = torch.fft.irfft2(shaped, s=(height, width)).std((1, 2), correction=0)
        shaped = shaped / spread[:, None, None] * 0.5 + torch.fft.rfft2(pattern)
    fine = torch.hypot(fx, fy) >= 1 / DETAIL_WAVELENGTH
    coarse = (~fine) & (torch.hypot(fx, fy) > 0)
    detail = _normalized(torch.fft.irfft2(shaped * fine, s=(height, width)))
    rest = _normalized(torch.fft.irfft2(shaped * coarse, s=(height, width)))
    amount = torch.tensor([COARSE[b] for b in backgrounds], device=device)[:, None, None]
    field = DETAIL * detail + amount * rest
    color = torch.tensor([GROUNDS[b] for b in backgrounds], device=device)[:, None, None, :]
    # Times the color, so that dark grains are as dull as light ones; over its mean, so that the
    # deviation is that of the field; halved, because the field is in units of -1..1.
    relief = field[..., None] / (2 * color.mean(-1, keepdim=True))
    return (color * (1 + relief)).clamp_(0, 1)


def _normalized(field: Tensor) -> Tensor:
    """Fields ``[B, H, W]`` with a standard deviation of 1; one that is flat stays flat."""
    return field / field.std((1, 2), keepdim=True, correction=0).clamp_min(1e-6)


def _band(frequency: Tensor, longest: float, shortest: float) -> Tensor:
    """1 between two wavelengths in pixels, with soft flanks a quarter of an octave wide."""
    octaves = torch.log2(frequency.clamp_min(1e-4))
    low, high = -math.log2(longest), -math.log2(shortest)
    return torch.sigmoid((octaves - low) * 16) * torch.sigmoid((high - octaves) * 16)


def _around(frequency: Tensor, longest: float) -> Tensor:
    """1 for wavelengths far above ``longest`` pixels, falling off softly below it."""
    return torch.exp(-0.5 * (frequency * longest) ** 2)


def _sand(fx: Tensor, fy: Tensor) -> Tensor:
    radius = torch.hypot(fx, fy)
    return _band(radius, 8, 5) + _band(radius, 64, 16)


def _stone(fx: Tensor, fy: Tensor) -> Tensor:
    radius = torch.hypot(fx, fy)
    return _band(radius, 80, 4.5) / radius.clamp_min(1 / 80)


def _grass(fx: Tensor, fy: Tensor) -> Tensor:
    return _band(fx, 8, 4.5) * _around(fy, 12) + _band(torch.hypot(fx, fy), 48, 12) * 0.5


def _wood(fx: Tensor, fy: Tensor) -> Tensor:
    return (_band(fy, 8, 4.5) + _band(fy, 40, 10)) * _around(fx, 60)


def _faint(fx: Tensor, fy: Tensor) -> Tensor:
    return _band(torch.hypot(fx, fy), 48, 6)


_NOISE: Mapping[Background, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        Background.SAND: _sand,
        Background.GRASS: _grass,
        Background.WOOD: _wood,
        Background.STONE: _stone,
        Background.CLOTH: _faint,
        Background.BRICK: _faint,
    }
)
"""Amplitudes of frequencies ``fx``, ``fy`` in cycles a pixel."""


def _weave(x: Tensor, y: Tensor, phase_x: float, phase_y: float) -> Tensor:
    """Threads 3.5 pixels wide that go over and under each other."""
    across = torch.sin(2 * math.pi * (x / 7 + phase_x))
    down = torch.sin(2 * math.pi * (y / 7 + phase_y))
    return across * down * 1.4 + (across + down) * 0.5


def _brickwork(x: Tensor, y: Tensor, phase_x: float, phase_y: float) -> Tensor:
    """Bricks of 16 by 8 pixels, each row moved by half a brick; joints are dark."""
    y = y + 8 * phase_y
    row = torch.floor(y / 8)
    x = x + 16 * phase_x + 8 * (row % 2)
    from_joint = torch.minimum(_to_multiple(x, 16), _to_multiple(y, 8))
    return ((from_joint - 0.3) / 1.2).clamp(0, 1) * 3


def _to_multiple(value: Tensor, of: float) -> Tensor:
    """How far values are from the nearest multiple."""
    return (value - of * torch.round(value / of)).abs()


_PATTERN: Mapping[Background, Callable[[Tensor, Tensor, float, float], Tensor]] = MappingProxyType(
    {Background.CLOTH: _weave, Background.BRICK: _brickwork}
)
"""Of pixels ``x``, ``y`` and two phases in 0..1, in units of twice the noise's deviation."""
