"""What people run today: LongLive v1.0's public inference code, operation for operation.

Dtypes, copies and waits are those of that code; only the names of the weights are diffusers'. An
improvement here would change what every result was compared with.
"""
