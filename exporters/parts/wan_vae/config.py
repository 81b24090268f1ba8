"""Sizes of a Wan VAE."""

from dataclasses import dataclass

from vidc.exporters.table import Table

SPATIAL_STRIDE = 8
"""Pixels to a latent, in height and in width."""


@dataclass(frozen=True)
class VaeConfig(Table):
    """Sizes of a Wan VAE, with the per-channel statistics that normalize its latents."""

    base_dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)
    latents_mean: tuple[float, ...] = (
        -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
        0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
    )  # fmt: skip
    latents_std: tuple[float, ...] = (
        2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
        3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.require_sizes("vae", "base_dim", "z_dim", "dim_mult", "res_blocks")
        self.require(self.base_dim > 1, "vae.base_dim = 1 cannot be halved", "set it to 2 or more")
        self.require(
            len(self.latents_mean) == len(self.latents_std) == self.z_dim,
            f"vae.latents_mean and vae.latents_std must hold z_dim = {self.z_dim} values",
            "copy both from the VAE's config",
        )
        self.require(
            min(self.latents_std) > 0,
            f"vae.latents_std holds {min(self.latents_std)}, which is no standard deviation",
            "copy it from the VAE's config",
        )
        self.require(
            len(self.dim_mult) == 4 and self.temporal_downsample == (False, True, True),
            f"vae.dim_mult = {list(self.dim_mult)}, vae.temporal_downsample = "
            f"{list(self.temporal_downsample)}: not a stride of 8 in space and 4 in time",
            "use four multipliers and [false, true, true]",
        )
