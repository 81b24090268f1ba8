"""Search for the first value of an engine that differs from PyTorch."""
