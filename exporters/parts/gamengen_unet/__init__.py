"""Part ``gamengen_unet``: Stable Diffusion's UNet, conditioned on past latents and actions."""
