"""The contract between vidc's operators and the engines that call them."""

PLUGIN_ABI = 4
"""Raised whenever an operator's name, arguments or meaning changes, so that an engine built
against the old ones is refused."""
