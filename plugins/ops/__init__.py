"""Operators of the namespace ``vidc``: schema, CPU reference and fake kernel of each."""
