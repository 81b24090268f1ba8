"""TensorRT backend, for TensorRT and TensorRT-RTX."""
