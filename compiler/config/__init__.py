"""Settings: resolves presets, targets, flags, environment and files to one configuration."""
