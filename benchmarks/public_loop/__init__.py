"""LongLive v1.0's public inference code, operation for operation, beside a bundle.

Dtypes, copies and waits are those of that code; parameters are those of vidc's own networks and of
diffusers' VAE.
"""
