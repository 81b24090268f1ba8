"""Generates blocks from noise of your own instead of noise drawn from the seed.

python examples/explicit_noise.py out/demo --prompt "a red square moving left over grass"

With the same noise, any other implementation of the model can be compared step by step.
"""

import argparse

import torch

from vidc.runtime import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--blocks", type=int, default=2)
    arguments = parser.parse_args()

    source = torch.Generator().manual_seed(7)
    with load(arguments.bundle) as bundle, bundle.session() as session:
        # [steps, batch, latent frames, channels, height / 8, width / 8]: the first entry starts
        # the block, each later one renoises the result of a denoising step.
        shape = session.spec.noise_shape
        noises = [torch.randn(shape, generator=source) for _ in range(arguments.blocks)]
        played = []
        for _ in range(2):
            session.reset()
            session.prompt(arguments.prompt)
            latents = [session.generate(noise.to(bundle.device)) for noise in noises]
            played.append(torch.stack(latents).cpu())
    print(f"noise {list(shape)}, latents {list(played[0][0].shape)}")
    print(f"the same noise gives the same latents: {torch.equal(*played)}")


if __name__ == "__main__":
    main()
