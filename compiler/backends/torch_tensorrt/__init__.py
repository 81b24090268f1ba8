"""Torch-TensorRT backend."""
