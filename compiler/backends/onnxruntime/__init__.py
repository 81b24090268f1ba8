"""ONNX Runtime: runs a component as an ONNX graph."""
