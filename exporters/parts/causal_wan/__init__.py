"""Part ``causal_wan``: the block-wise causal Wan transformer of LongLive and Self-Forcing."""
