"""From an exported component to a plan of TensorRT or TensorRT-RTX, one API for both."""
