"""Presets, targets, thresholds and the error catalog, as TOML."""
