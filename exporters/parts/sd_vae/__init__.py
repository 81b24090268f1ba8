"""Part ``sd_vae``: the VAE of Stable Diffusion, one frame at a time."""
