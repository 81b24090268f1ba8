"""Part ``svd_unet``: the denoising UNet of Stable Video Diffusion."""
