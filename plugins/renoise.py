"""Operator ``renoise``: a step of the sampler between two denoising passes."""

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define

_CHECKS = Checks("renoise")


def renoise_reference(
    latent: Tensor, flow: Tensor, noise: Tensor, sigma: float, next_sigma: float
) -> None:
    """Moves a noisy latent along the flow to the clean one, and puts the next step's noise on it.

    ``x_t = (1 - sigma) x_0 + sigma noise`` and ``flow = noise - x_0``, so the latent becomes
    ``(1 - next_sigma) x_0 + next_sigma noise`` with ``x_0 = x_t - sigma flow``.

    Args:
        latent: float32 ``[B, F, C, h, w]``, written.
        flow: the same shape and dtype.
        noise: the same.
        sigma: noise level of the latent, from 0 to 1.
        next_sigma: that of the next step.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(latent, flow, noise, sigma, next_sigma)
    latent.sub_(flow, alpha=sigma).lerp_(noise, next_sigma)


def _check(latent: Tensor, flow: Tensor, noise: Tensor, sigma: float, next_sigma: float) -> None:
    _CHECKS.shape("latent", latent, ("B", "F", "C", "h", "w"))
    _CHECKS.shape("flow", flow, latent.shape)
    _CHECKS.shape("noise", noise, latent.shape)
    for name, tensor in (("latent", latent), ("flow", flow), ("noise", noise)):
        _CHECKS.dtype(name, tensor, (torch.float32,))


renoise = define(
    "renoise(Tensor(a!) latent, Tensor flow, Tensor noise, float sigma, float next_sigma) -> ()",
    renoise_reference,
    _check,
)
