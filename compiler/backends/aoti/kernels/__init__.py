"""Kernels that are compiled ahead of time, for a GPU that need not be there."""
