"""Part ``diamond_unet``: the denoiser and the upsampler of a DIAMOND world model."""
