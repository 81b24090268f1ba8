"""The VAE of Stable Diffusion, under the parameter names of diffusers' ``AutoencoderKL``."""

from torch import nn

from vidc.exporters.parts.spatio_temporal import Conv2d
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS, SvdVaeConfig
from vidc.exporters.parts.svd_vae.network import Decoder, Encoder


class SdVae(nn.Module):
    """The network; its encoder is also Stable Video Diffusion's.

    Args:
        config: its sizes.
    """

    def __init__(self, config: SvdVaeConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.quant_conv = Conv2d(2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, 1)
        self.post_quant_conv = Conv2d(LATENT_CHANNELS, LATENT_CHANNELS, 1)
        self.decoder = Decoder(config)
