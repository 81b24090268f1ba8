"""Part ``clip_vision``: the CLIP image encoder of Stable Video Diffusion."""
