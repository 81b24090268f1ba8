"""The stages of a build, and what each one's result depends on."""
