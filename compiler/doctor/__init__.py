"""Checks of this machine and hints for what is missing."""
