"""Part ``oasis``: the spatio-temporal diffusion transformer of an Oasis world model."""
