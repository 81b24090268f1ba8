"""Turns a calibration and a recipe into 8-bit weights and into graphs that compute with them."""
