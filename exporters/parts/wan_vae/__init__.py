"""Part ``wan_vae``: diffusers' Wan VAE as streaming components with explicit caches."""
