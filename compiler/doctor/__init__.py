"""Examines this machine: what works, what is missing, what to do about it."""
