"""A small model that is trained on generated clips: its data, and what reads its videos."""
