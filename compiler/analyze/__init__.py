"""Sensitivity analysis: damage and time of each group of quantized layers, and their choice."""
