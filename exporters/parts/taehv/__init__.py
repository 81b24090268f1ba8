"""Part ``taehv``: a tiny autoencoder of videos, in place of the full VAE or beside it."""
