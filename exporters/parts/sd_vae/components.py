"""The components a VAE of single frames is run as, and their signatures."""

from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.sd_vae.network import SdVae
from vidc.exporters.parts.sd_vae.part import SdVaePart
from vidc.exporters.parts.svd_vae.components import VaeEncode
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS
from vidc.plugins.signature import Role, Signature, TensorSpec


class EncodeFrame(VaeEncode):
    """Component ``vae_encode``: a frame to its latent, scaled as the UNet takes it."""

    def __init__(self, vae: SdVae, scale: float) -> None:
        super().__init__(vae)
        self.scale = scale

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the mode of the latent's distribution times ``scale``, ``[1, 4, h, w]``."""
        (mode,) = super().forward(image)
        return (mode * self.scale,)


class DecodeFrame(nn.Module):
    """Component ``vae_decode``: a latent to pixels from -1 to 1."""

    def __init__(self, vae: SdVae, scale: float) -> None:
        super().__init__()
        self.vae = vae
        self.scale = scale

    def forward(self, latent: Tensor) -> tuple[Tensor]:
        """Returns a frame, float32 ``[1, 1, 3, H, W]``, of a scaled latent ``[1, 4, h, w]``."""
        dtype = self.vae.post_quant_conv.weight.dtype
        x = self.vae.post_quant_conv((latent / self.scale).to(dtype))
        frames: Tensor = self.vae.decoder(x)
        return (frames[None].float(),)


def components(part: SdVaePart, vae: nn.Module) -> dict[str, Component]:
    """Returns ``vae_encode`` and ``vae_decode``, which share the parameters of ``vae``."""
    assert isinstance(vae, SdVae)
    image, latent = (3, part.height, part.width), (1, LATENT_CHANNELS, *part.latent_size)
    encode = Signature(
        (
            TensorSpec("image", (1, *image), "float32", Role.INPUT),
            TensorSpec("latent", latent, "float32", Role.OUTPUT),
        )
    )
    decode = Signature(
        (
            TensorSpec("latent", latent, "float32", Role.INPUT),
            TensorSpec("frames", (1, 1, *image), "float32", Role.OUTPUT),
        )
    )
    scale = part.config.scale
    return {
        "vae_encode": Component("vae_encode", EncodeFrame(vae, scale), encode),
        "vae_decode": Component("vae_decode", DecodeFrame(vae, scale), decode),
    }
