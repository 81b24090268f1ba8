"""Parts: one package a network, with everything of it."""
