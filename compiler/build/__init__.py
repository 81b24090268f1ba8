"""Builds of bundles: the stages, their list, and the commands that run them.

A stage is a pure step such as ``load:transformer``. Its result is in the store under a key, and is
reused while the key is the same. The last step publishes a bundle made from the results.
"""
