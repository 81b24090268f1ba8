"""Settings: presets, targets, and how flags, environment and files add up to a build's config."""
