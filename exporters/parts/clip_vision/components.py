"""The component a CLIP image encoder is run as."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.component import Component
from vidc.exporters.parts.clip_vision.network import ClipVision
from vidc.exporters.parts.clip_vision.part import ClipVisionPart
from vidc.plugins.signature import Role, Signature, TensorSpec

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
"""Statistics of CLIP's training images, by channel."""
_MIN_SIGMA = 0.001


class EncodeImage(nn.Module):
    """Component ``image_encoder``: an image to its CLIP embedding."""

    def __init__(self, encoder: ClipVision, side: int) -> None:
        super().__init__()
        self.image_encoder = encoder
        self.side = side

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the embedding, float32 ``[1, 1, E]``, of pixels from -1 to 1, ``[1, 3, H, W]``.

        The image is resized to a square in float32, without cropping.
        """
        shares = (resized(image, self.side) + 1) / 2
        channels = [
            (shares[:, i : i + 1] - mean) / std
            for i, (mean, std) in enumerate(zip(_MEAN, _STD, strict=True))
        ]
        embedding = self.image_encoder(torch.cat(channels, 1).to(self.image_encoder.dtype))
        return (embedding[:, None].float(),)


def resized(image: Tensor, side: int) -> Tensor:
    """Resizes ``[1, 3, H, W]`` to a square as diffusers' pipeline of Stable Video Diffusion does.

    A Gaussian blur precedes bicubic interpolation with aligned corners. Its standard deviation is
    half the excess of the scale over 1, its width four of them, at least three pixels.
    """
    *_, height, width = image.shape
    blurred = _blur(_blur(image, width, side, -1), height, side, -2)
    return F.interpolate(blurred, size=(side, side), mode="bicubic", align_corners=True)


def _blur(image: Tensor, size: int, side: int, axis: int) -> Tensor:
    """Blurs along one axis; pixels beyond the border mirror those inside."""
    sigma = max((size / side - 1) / 2, _MIN_SIGMA)
    taps = int(max(4 * sigma, 3)) | 1
    x = torch.arange(taps, dtype=image.dtype, device=image.device) - taps // 2
    weights = torch.exp(-x.square() / (2 * sigma**2))
    kernel = weights / weights.sum()
    edge = taps // 2
    if axis == -1:
        shape, padding = (1, 1, 1, taps), (edge, edge, 0, 0)
    else:
        shape, padding = (1, 1, taps, 1), (0, 0, edge, edge)
    planes = F.pad(image, padding, mode="reflect").transpose(0, 1)
    return F.conv2d(planes, kernel.view(shape)).transpose(0, 1)


def components(part: ClipVisionPart, encoder: nn.Module) -> dict[str, Component]:
    """Returns ``image_encoder``."""
    assert isinstance(encoder, ClipVision)
    image = (1, 3, part.height, part.width)
    signature = Signature(
        (
            TensorSpec("image", image, "float32", Role.INPUT),
            TensorSpec("embeds", (1, 1, part.config.projection), "float32", Role.OUTPUT),
        )
    )
    module = EncodeImage(encoder, part.config.image)
    return {"image_encoder": Component("image_encoder", module, signature)}
