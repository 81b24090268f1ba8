"""The stages of a build, each a module with a ``run`` of its own."""
