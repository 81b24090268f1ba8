"""Table ``vae`` of family ``causal_video``: which autoencoders a model has."""

from dataclasses import dataclass, fields

from vidc.exporters.parts.taehv.config import GROUP as TAEHV
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.part import WanVaePart
from vidc.plugins.errors import UsageError, nearest

WAN = "wan"
KINDS = {
    WAN: (WanVaePart.group,),
    "taehv": (TAEHV,),
    "both": (WanVaePart.group, TAEHV),
}
"""Weights groups of the autoencoders by ``vae.kind``; sessions decode with the first by default."""

CHANNELS = {WanVaePart.group: "vae.z_dim", TAEHV: "taehv.latent_channels"}
"""Setting that has the channels of an autoencoder's latents, by its group."""


@dataclass(frozen=True)
class VaeTable(VaeConfig):
    """Sizes of a Wan VAE, and which autoencoders a model has.

    Attributes:
        kind: a key of ``KINDS``.
    """

    kind: str = WAN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in KINDS:
            raise UsageError(
                "VIDC-CONFIG-SETTING",
                f"vae.kind = {self.kind!r} is none of {', '.join(KINDS)}",
                nearest(self.kind, KINDS),
            )

    @property
    def sizes(self) -> VaeConfig:
        """The sizes of the Wan VAE alone."""
        return VaeConfig(**{field.name: getattr(self, field.name) for field in fields(VaeConfig)})
