"""Computes everything between the convolutions of a VAE in bf16 in float32.

A residual block adds its result to the sum of earlier blocks. In bf16 this sum is rounded thirty
times on the way to a frame; together with the norms, this rounding is a third of the error. In
float32 a kernel that adds and normalizes moves two bytes more for each value.
"""

from typing import Any

from torch import Tensor, nn


def sum_in_float32(vae: nn.Module) -> None:
    """Makes convolutions take inputs in their weights' dtype, and all other layers float32.

    Args:
        vae: diffusers' ``AutoencoderKLWan`` in bf16; changed in place.
    """
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanResample

    for module in vae.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            module.register_forward_pre_hook(_lower)
        # Not what attention's convolutions return: attention is computed in the weights' dtype.
        if isinstance(module, WanCausalConv3d | WanResample):
            module.register_forward_hook(_raise)


def _lower(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Converts a convolution's input, and a causal one's memory, to the dtype of its weights."""
    dtype = module.get_parameter("weight").dtype
    return tuple(each.to(dtype) if isinstance(each, Tensor) else each for each in arguments)


def _raise(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.float()
