"""Export of components to ONNX, and the checks that such graphs must pass."""
