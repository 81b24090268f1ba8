"""Finds where an engine begins to compute something else than PyTorch."""
