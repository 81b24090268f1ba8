"""Checkpoints: reading them, giving them canonical names, merging LoRA, writing weights."""
