"""Whether an engine still computes the model: metrics, thresholds, gates and the report."""
