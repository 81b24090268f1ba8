"""Part ``oasis_vae``: Oasis's VAE, a vision transformer each way."""
