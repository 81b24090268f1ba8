"""Stages of a build, and the list and commands that run them."""
