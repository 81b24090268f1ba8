"""The components a VAE is run as, and their signatures."""

from typing import Any

from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS
from vidc.exporters.parts.svd_vae.image_vae import ImageVae
from vidc.exporters.parts.svd_vae.network import SvdVae
from vidc.exporters.parts.svd_vae.part import SvdVaePart
from vidc.plugins.signature import Role, Signature, TensorSpec


class VaeEncode(nn.Module):
    """Component ``vae_encode``: an image to its latent.

    It runs in float32 in every precision: the encoder's activations exceed the range of float16.
    """

    def __init__(self, vae: nn.Module) -> None:
        super().__init__()
        self.vae: Any = vae

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the mode of the latent's distribution, unscaled, float32 ``[1, 4, h, w]``."""
        moments: Tensor = self.vae.quant_conv(self.vae.encoder(image))
        return (moments[:, :LATENT_CHANNELS],)


class VaeDecode(nn.Module):
    """Component ``vae_decode``: latents of a chunk of frames to pixels from -1 to 1."""

    def __init__(self, vae: SvdVae, scale: float) -> None:
        super().__init__()
        self.vae = vae
        self.scale = scale

    def forward(self, latent: Tensor) -> tuple[Tensor]:
        """Returns frames, float32 ``[1, T, 3, H, W]``, of ``[1, T, 4, h, w]``."""
        dtype = self.vae.quant_conv.weight.dtype
        frames = self.vae.decoder((latent[0] / self.scale).to(dtype))
        return (frames[None].float(),)


def components(part: SvdVaePart, vae: nn.Module) -> dict[str, Component]:
    """Returns ``vae_encode`` and ``vae_decode``, which share the parameters of ``vae``."""
    assert isinstance(vae, SvdVae)
    latents = (1, part.chunk, LATENT_CHANNELS, *part.latent_size)
    return encoder_and_decoder(part, VaeEncode(vae), VaeDecode(vae, part.config.scale), latents)


def encoder_and_decoder(
    part: ImageVae, encode: nn.Module, decode: nn.Module, latents: tuple[int, ...]
) -> dict[str, Component]:
    """Returns the two components of a VAE.

    Args:
        part: sizes.
        encode: maps ``image``, float32 ``[1, 3, H, W]``, to ``latent``, float32 ``[1, 4, h, w]``.
        decode: maps ``latent``, float32 of the shape ``latents``, to ``frames``, float32
            ``[1, T, 3, H, W]``.
        latents: shape of the latents of a call.
    """
    image, latent = (3, part.height, part.width), (1, LATENT_CHANNELS, *part.latent_size)
    encoding = (
        TensorSpec("image", (1, *image), "float32", Role.INPUT),
        TensorSpec("latent", latent, "float32", Role.OUTPUT),
    )
    decoding = (
        TensorSpec("latent", latents, "float32", Role.INPUT),
        TensorSpec("frames", (1, part.frames, *image), "float32", Role.OUTPUT),
    )
    return {
        "vae_encode": Component("vae_encode", encode, Signature(encoding)),
        "vae_decode": Component("vae_decode", decode, Signature(decoding)),
    }
