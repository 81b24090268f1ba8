"""Presets, targets, thresholds and the error catalogue, as TOML."""
