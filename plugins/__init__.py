"""Operators, and the vocabulary that every package shares: signatures and errors."""
