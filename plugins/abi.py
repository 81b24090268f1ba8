"""The version of the interface between vidc's operators and the engines that call them."""

PLUGIN_ABI = 8
"""Raised whenever an operator's name, arguments or meaning changes: an engine built for another
number is refused."""
