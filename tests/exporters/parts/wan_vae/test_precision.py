"""Float32 between the convolutions of a bf16 VAE lowers its error and changes nothing else."""

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResidualBlock
from tensors import empty_tensors
from torch import nn

from vidc.exporters.parts.wan_vae import network as model
from vidc.exporters.parts.wan_vae.network import create
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict

LATENT = (1, 3, 16, 4, 6)


def decoded(config, vae: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    component = config.vae_part.components(vae)["vae_decode_first"]
    latent = torch.randn(LATENT, generator=torch.Generator().manual_seed(1))
    (frames,) = component.module(latent, *empty_tensors(component.signature.states))
    return frames


def test_sums_in_float32_take_a_part_of_the_error(configure, monkeypatch):
    config, dtype = configure(block=3), torch.bfloat16
    weights = random_state_dict(config.vae, 0, dtype)

    def frames(made_in: torch.dtype) -> torch.Tensor:
        vae = create(config.vae, made_in, "cpu")
        vae.load_state_dict({name: w.to(made_in) for name, w in weights.items()})
        return decoded(config, vae, made_in)

    ours = frames(dtype)
    monkeypatch.setattr(model, "sum_in_float32", lambda vae: None)  # diffusers' network, as it is.
    exact = frames(torch.float32)
    errors = [float((found - exact).norm()) for found in (ours, frames(dtype))]
    assert errors[0] < 0.85 * errors[1]


def test_what_residual_blocks_add_to_is_float32(configure):
    config = configure(block=3)
    vae = create(config.vae, torch.bfloat16, "cpu")
    vae.load_state_dict(random_state_dict(config.vae, 0, torch.bfloat16))
    seen = []
    for module in vae.modules():
        if isinstance(module, WanResidualBlock):
            module.register_forward_hook(lambda m, a, out: seen.append((a[0].dtype, out.dtype)))
    decoded(config, vae, torch.bfloat16)
    assert set(seen) == {(torch.float32, torch.float32)}
    assert {p.dtype for p in vae.parameters()} == {torch.bfloat16}


def test_all_of_it_is_float16_in_float16(configure):
    config = configure(block=3)
    vae = create(config.vae, torch.float16, "cpu")
    vae.load_state_dict(random_state_dict(config.vae, 0, torch.float16))
    seen = set()
    for module in vae.modules():
        if isinstance(module, WanResidualBlock):
            module.register_forward_hook(lambda m, a, out: seen.add((a[0].dtype, out.dtype)))
    decoded(config, vae, torch.float16)
    assert seen == {(torch.float16, torch.float16)}
