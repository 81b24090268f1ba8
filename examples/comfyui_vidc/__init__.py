"""ComfyUI node that generates video with a vidc bundle.

Copy this folder to ComfyUI's ``custom_nodes`` and install vidc into ComfyUI's Python.
"""

from functools import lru_cache
from typing import Any

import torch

from vidc.runtime import Bundle, load


@lru_cache(maxsize=1)
def opened(folder: str) -> Bundle:
    """Returns the bundle in a folder; the last one stays loaded from run to run."""
    return load(folder)


class VidcGenerate:
    """Generates blocks of video from a prompt."""

    CATEGORY = "vidc"
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("frames",)
    FUNCTION = "generate"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802  ComfyUI's name.
        return {
            "required": {
                "bundle": ("STRING", {"default": "out/demo"}),
                "prompt": ("STRING", {"multiline": True}),
                "blocks": ("INT", {"default": 7, "min": 1, "max": 1000}),
                "seed": ("INT", {"default": 0, "min": 0, "max": 2**63 - 1}),
            }
        }

    def generate(self, bundle: str, prompt: str, blocks: int, seed: int) -> tuple[torch.Tensor]:
        """Returns float32 frames ``[frames, H, W, 3]`` from 0 to 1 on the CPU."""
        with opened(bundle).session(seed=seed) as session:
            session.prompt(prompt)
            frames = torch.cat([block.cpu() for block in session.stream(blocks=blocks)])
        return (frames.float() / 255,)


NODE_CLASS_MAPPINGS = {"VidcGenerate": VidcGenerate}
NODE_DISPLAY_NAME_MAPPINGS = {"VidcGenerate": "vidc: generate video"}
