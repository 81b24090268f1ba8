"""From an exported component to a plan of TensorRT's by Torch-TensorRT, for either product."""
