"""Benchmarks of bundles: block latencies against baselines and stored results."""
