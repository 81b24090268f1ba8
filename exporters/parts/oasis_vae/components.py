"""The components a VAE is run as, and their signatures."""

from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.oasis_vae.network import COLORS, OasisVae
from vidc.exporters.parts.oasis_vae.part import OasisVaePart
from vidc.plugins.signature import Role, Signature, TensorSpec


class VaeEncode(nn.Module):
    """Component ``vae_encode``: an image to its latent."""

    def __init__(self, vae: OasisVae) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Returns the scaled mean of the latent, float32 ``[1, C, h, w]``."""
        return (self.vae.encode(image),)


class VaeDecode(nn.Module):
    """Component ``vae_decode``: a latent to its image."""

    def __init__(self, vae: OasisVae) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latent: Tensor) -> tuple[Tensor]:
        """Returns an image from -1 to 1, float32 ``[1, 1, 3, H, W]``."""
        return (self.vae.decode(latent)[:, None],)


def components(part: OasisVaePart, vae: nn.Module) -> dict[str, Component]:
    """Returns ``vae_encode`` and ``vae_decode``, which share the parameters of ``vae``."""
    assert isinstance(vae, OasisVae)
    image, latent = (COLORS, part.height, part.width), (1, part.config.channels, *part.grid)
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
    return {
        "vae_encode": Component("vae_encode", VaeEncode(vae), encode),
        "vae_decode": Component("vae_decode", VaeDecode(vae), decode),
    }
