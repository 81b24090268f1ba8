"""Quantization: recipes and calibrations become quantized modules and 8-bit weights."""
