"""Families of models, their checkpoints, and the export of their components."""
