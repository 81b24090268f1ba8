"""The command line and the build: stages, backends, validation and reports."""
