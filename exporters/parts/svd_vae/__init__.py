"""Part ``svd_vae``: the image encoder and temporal decoder of Stable Video Diffusion."""
