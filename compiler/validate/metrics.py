"""Distances of tensors and frames from references, accumulated in float64.

A value that is not finite, on either side, gives the worst figure of every metric instead of NaN,
so that no comparison with a threshold passes.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

SSIM_WINDOW = 11
SSIM_SIGMA = 1.5


@dataclass(frozen=True)
class TensorMetrics:
    """Distance of a tensor from its reference.

    Attributes:
        finite: True if both tensors are finite.
        relative_l2: ``|actual - reference| / |reference|``, in L2 norms.
        cosine: cosine of the angle between the two, as vectors.
        max_error: the largest ``|actual - reference|``.
        sqnr_db: signal to quantization noise in dB.
    """

    finite: bool
    relative_l2: float
    cosine: float
    max_error: float
    sqnr_db: float


@dataclass(frozen=True)
class PixelMetrics:
    """Distance of pictures from their references.

    Attributes:
        finite: True if both are finite.
        psnr_db: peak signal to noise over all frames; infinite where the two are equal.
        ssim: structural similarity, the mean over frames, channels and positions.
    """

    finite: bool
    psnr_db: float
    ssim: float


def compare(actual: torch.Tensor, reference: torch.Tensor) -> TensorMetrics:
    """Compares ``actual`` with ``reference``, of equal shape and any real dtype.

    Raises:
        ValueError: if the shapes differ or hold no element.
    """
    actual, reference = _as_float64(actual, reference)
    if not _finite(actual, reference):
        return TensorMetrics(False, math.inf, -1.0, math.inf, -math.inf)
    error = actual - reference
    signal, noise = reference.norm().item(), error.norm().item()
    if noise == 0:
        return TensorMetrics(True, 0.0, 1.0, 0.0, math.inf)
    return TensorMetrics(
        finite=True,
        relative_l2=noise / signal if signal else math.inf,
        cosine=_cosine(actual, reference),
        max_error=error.abs().max().item(),
        sqnr_db=sqnr_db(noise / signal if signal else math.inf),
    )


def sqnr_db(relative_l2: float) -> float:
    """Returns the signal-to-noise ratio in dB: ``20 log10(|reference| / |actual - reference|)``.

    That is ``-20 log10(relative_l2)``: the same figure on another scale, 6.02 dB more for each
    halving of the error. Infinite for equal tensors, minus infinity for an infinite relative error.
    """
    if relative_l2 == 0:
        return math.inf
    return -math.inf if math.isinf(relative_l2) else -20 * math.log10(relative_l2)


def compare_pixels(actual: torch.Tensor, reference: torch.Tensor) -> PixelMetrics:
    """Compares frames ``[N, 3, H, W]`` with values from 0 to 255 with their references.

    Raises:
        ValueError: as ``psnr`` and ``ssim``.
    """
    finite = _finite(actual, reference)
    return PixelMetrics(finite, psnr(actual, reference), ssim(actual, reference))


def psnr(actual: torch.Tensor, reference: torch.Tensor, peak: float = 255.0) -> float:
    """Returns the PSNR in dB, ``10 log10(peak^2 / mean squared error)``.

    Infinite where the two are equal, minus infinity where a value is not finite.

    Raises:
        ValueError: if the shapes differ or hold no element.
    """
    actual, reference = _as_float64(actual, reference)
    if not _finite(actual, reference):
        return -math.inf
    mean_square = (actual - reference).square().mean().item()
    return 10 * math.log10(peak**2 / mean_square) if mean_square else math.inf


def ssim(actual: torch.Tensor, reference: torch.Tensor, peak: float = 255.0) -> float:
    """Returns the SSIM of frames [N, C, H, W] with values from 0 to ``peak``.

    As Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error visibility to
    structural similarity" (2004): Gaussian windows of 11 x 11 with sigma 1.5 that lie inside the
    picture, K1 = 0.01, K2 = 0.03, weighted moments without sample correction; each channel by
    itself. -1 where a value is not finite.

    Raises:
        ValueError: if the shapes differ or a frame is smaller than a window.
    """
    if actual.ndim != 4 or min(actual.shape[-2:]) < SSIM_WINDOW:
        raise ValueError(f"SSIM needs [N, C, H, W] of at least {SSIM_WINDOW} x {SSIM_WINDOW}")
    actual, reference = _as_float64(actual, reference)
    if not _finite(actual, reference):
        return -1.0
    window = _gaussian(actual.device)
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    total = 0.0
    # Frame by frame: the moments in float64 take ten times the memory of the frames.
    for x, y in zip(actual, reference, strict=True):
        mean_x, mean_y, xx, yy, xy = _blur(torch.stack([x, y, x * x, y * y, x * y]), window)
        var_x, var_y, cov = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
        luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
        structure = (2 * cov + c2) / (var_x + var_y + c2)
        total += (luminance * structure).mean().item()
    return total / len(actual)


def _as_float64(actual: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if actual.shape != reference.shape or actual.numel() == 0:
        raise ValueError(
            f"cannot compare {list(actual.shape)} with {list(reference.shape)}: "
            "equal shapes with at least one element are needed"
        )
    return actual.double(), reference.double()


def _finite(actual: torch.Tensor, reference: torch.Tensor) -> bool:
    return bool(actual.isfinite().all() and reference.isfinite().all())


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    norms = a.norm().item() * b.norm().item()
    if norms == 0:
        return 0.0
    # Rounding can exceed the interval by an ulp.
    return float(torch.dot(a.flatten(), b.flatten()).div(norms).clamp(-1, 1))


def _gaussian(device: torch.device) -> torch.Tensor:
    """Returns the normalized 1-D Gaussian window, float64 [11]."""
    offsets = torch.arange(SSIM_WINDOW, dtype=torch.float64, device=device) - SSIM_WINDOW // 2
    weights = torch.exp(-0.5 * (offsets / SSIM_SIGMA) ** 2)
    return weights / weights.sum()


def _blur(maps: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """Filters ``maps`` [M, C, H, W] with the window: [M, C, H - 10, W - 10]."""
    moments, channels = maps.shape[:2]
    flat = maps.flatten(0, 1).unsqueeze(1)
    flat = F.conv2d(F.conv2d(flat, window.view(1, 1, -1, 1)), window.view(1, 1, 1, -1))
    return flat.view(moments, channels, *flat.shape[-2:])
