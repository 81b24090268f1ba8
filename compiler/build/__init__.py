"""The stages of a build, and what runs them."""
