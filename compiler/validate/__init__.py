"""Validation of engines against PyTorch: metrics, thresholds, gates and the report."""
