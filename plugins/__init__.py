"""Operators with their kernels, and what every package shares: signatures and errors."""
