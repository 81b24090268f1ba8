"""The components a VAE of single frames is run as, and their signatures."""

from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.sd_vae.network import SdVae
from vidc.exporters.parts.sd_vae.part import SdVaePart
from vidc.exporters.parts.svd_vae.components import VaeEncode, encoder_and_decoder
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS


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
    latent, scale = (1, LATENT_CHANNELS, *part.latent_size), part.config.scale
    return encoder_and_decoder(part, EncodeFrame(vae, scale), DecodeFrame(vae, scale), latent)
