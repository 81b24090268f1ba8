"""Descriptions and comparisons of bundles, ONNX graphs, packages and plans."""
