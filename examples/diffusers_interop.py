"""Passes latents from vidc to diffusers, and from diffusers to vidc.

python examples/diffusers_interop.py out/demo configs/demo/vae --prompt "a blue star moving down"

1. vidc generates a block; diffusers' VAE decodes its latents.
2. diffusers' VAE encodes that clip; vidc takes the latents as a stream's first block and goes on.
"""

import argparse

import torch
from diffusers import AutoencoderKLWan

from vidc.runtime import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("vae", help="folder of an AutoencoderKLWan with the bundle's weights")
    parser.add_argument("--prompt", required=True)
    arguments = parser.parse_args()

    vae = AutoencoderKLWan.from_pretrained(arguments.vae)
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
    with torch.no_grad(), load(arguments.bundle) as bundle, bundle.session(seed=7) as session:
        session.prompt(arguments.prompt)
        # vidc: normalized, [batch, frames, channels, h, w]. diffusers: [batch, channels, frames,
        # h, w], and its VAE takes them without the normalization.
        latents = session.generate()
        theirs = vae.decode(latents.cpu().transpose(1, 2) * std + mean).sample
        ours = session.decode(latents).cpu()
        levels = ((theirs[0].permute(1, 2, 3, 0) + 1) * 127.5).round().clamp(0, 255)
        difference = (levels - ours.float()).abs().max().item()
        print(f"{len(ours)} frames; diffusers' differ by at most {difference:.0f} of 255 levels")

        encoded = vae.encode(theirs.clamp(-1, 1)).latent_dist.mode()
        first = ((encoded - mean) / std).transpose(1, 2).contiguous()
        session.reset(seed=7)
        session.prompt(arguments.prompt)
        session.remember(first.to(bundle.device))
        following = session.generate()
        print(f"continued a clip of diffusers: latents {list(following.shape)}")


if __name__ == "__main__":
    main()
