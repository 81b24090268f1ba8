"""Images that callers give to a session, as tensors from -1 to 1."""

from typing import Any

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError

MODE = "RGB"


def image_tensor(image: Any, size: tuple[int, int]) -> Any:
    """Converts a picture to pixels; returns anything but a picture of PIL unchanged.

    Args:
        image: what the caller gave.
        size: height and width that it must have.

    Returns:
        float32 ``[1, 3, H, W]`` from -1 to 1 on the CPU.

    Raises:
        UsageError: ``VIDC-CLIP-IMAGE``, the picture has another size or mode.
    """
    from PIL.Image import Image

    if not isinstance(image, Image):
        return image
    height, width = size
    if image.mode != MODE:
        raise UsageError(
            "VIDC-CLIP-IMAGE",
            f"the image has mode {image.mode}, expected {MODE}",
            f'convert it: image.convert("{MODE}")',
        )
    if image.size != (width, height):
        raise UsageError(
            "VIDC-CLIP-IMAGE",
            f"the image has {image.width} x {image.height} pixels, expected {width} x {height}",
            f"crop it to the ratio and resize it: image.resize(({width}, {height}))",
        )
    pixels: Tensor = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    levels = pixels.view(1, height, width, len(MODE)).permute(0, 3, 1, 2)
    # The order of operations is diffusers': to [0, 1], then to [-1, 1].
    return levels.to(torch.float32).div(255).mul(2).sub(1).contiguous()
