"""What bundles, ONNX graphs and packages hold, and how two of a kind differ."""
