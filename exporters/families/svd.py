"""Family ``svd``: Stable Video Diffusion, an image to a clip of frames."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vidc.exporters.families.family import Family, FixedWork, LayerKind, Pass, Rollout
from vidc.exporters.families.svd_sampler import CONSISTENCY, SvdSampler
from vidc.exporters.part import Part
from vidc.exporters.parts.clip_vision.config import ClipVisionConfig
from vidc.exporters.parts.clip_vision.part import ClipVisionPart
from vidc.exporters.parts.svd_unet.config import UnetConfig
from vidc.exporters.parts.svd_unet.part import SvdUnetPart
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS, STRIDE, SvdVaeConfig
from vidc.exporters.parts.svd_vae.part import SvdVaePart
from vidc.exporters.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.exporters.checkpoint.layout import Layout

SIDE = 64
"""Height and width are multiples of it: the VAE's stride 8 times the UNet's downsampling by 8."""


@dataclass(frozen=True)
class ClipConfig(Table):
    """A clip's static sizes.

    Attributes:
        height: of a frame, in pixels.
        width: of a frame, in pixels.
        frames: of the clip.
        chunk: frames that the VAE decodes at once; they depend on it.
        image_encoder: False for a bundle that takes CLIP embeddings beside images.
        low_memory: True to compute the two predictions of guidance one after the other.
        memory_gb: 10^9 bytes that a bundle in 16 bits may take, by an estimate; 0 for no limit.
    """

    height: int
    width: int
    frames: int
    chunk: int
    image_encoder: bool = True
    low_memory: bool = False
    memory_gb: float = 0.0

    def __post_init__(self) -> None:
        self.require_sizes("clip", "height", "width", "frames", "chunk")
        self.require(
            self.memory_gb >= 0,
            f"clip.memory_gb = {self.memory_gb} is negative",
            "set it to 0 for no limit",
        )
        for name in ("height", "width"):
            size = getattr(self, name)
            self.require(
                size % SIDE == 0,
                f"clip.{name} = {size} is not a multiple of {SIDE}",
                f"use {max(1, size // SIDE) * SIDE} or {(max(1, size // SIDE) + 1) * SIDE}",
            )
        divisors = [n for n in range(1, self.frames + 1) if self.frames % n == 0]
        self.require(
            self.chunk in divisors,
            f"clip.chunk = {self.chunk} does not divide clip.frames = {self.frames}",
            f"use {', '.join(map(str, divisors[:-1]))} or {divisors[-1]}"
            if len(divisors) > 1
            else "use 1",
        )


@dataclass(frozen=True)
class Svd(Family):
    """A UNet over all frames of a clip, a VAE and, if wanted, a CLIP image encoder."""

    unet: UnetConfig
    vae: SvdVaeConfig
    image_encoder: ClipVisionConfig
    clip: ClipConfig
    sampler: SvdSampler

    name: ClassVar[str] = "svd"
    program: ClassVar[str] = "clip"
    tables: ClassVar[Mapping[str, type[Table]]] = {
        "model": UnetConfig,
        "vae": SvdVaeConfig,
        "image_encoder": ClipVisionConfig,
        "clip": ClipConfig,
        "sampler": SvdSampler,
    }
    groups: ClassVar[tuple[str, ...]] = (
        ClipVisionPart.group, SvdVaePart.group, SvdUnetPart.group,
    )  # fmt: skip
    decoder_group: ClassVar[str] = SvdVaePart.group
    quantized_group: ClassVar[str] = SvdUnetPart.group
    recipes: ClassVar[Mapping[str, str]] = {"int8": "svd-int8"}
    single_file: ClassVar[bool] = True
    optional: ClassVar[Mapping[str, str]] = {
        ClipVisionPart.group: "--set clip.image_encoder=false, and pass embeddings with each image"
    }
    calibrated_tables = ("model", "clip", "sampler")
    layer_kinds: ClassVar[tuple[LayerKind, ...]] = (
        LayerKind("self-attention", "**.attn1.**"),
        LayerKind("feed-forward", "**.ff**.net.**"),
        LayerKind("projections", "**.proj_*"),
    )
    block_prefix: ClassVar[str] = "down_blocks."

    def __post_init__(self) -> None:
        self.clip.require(
            self.unet.image_dim == self.image_encoder.projection or not self.clip.image_encoder,
            f"model.image_dim = {self.unet.image_dim} but image_encoder.projection = "
            f"{self.image_encoder.projection}",
            "the UNet takes what the image encoder gives: set both to one value",
        )
        self.clip.require(
            self.sampler.guided or not self.clip.low_memory,
            "clip.low_memory = true, and sampler.guidance asks for no second prediction",
            "leave clip.low_memory out",
        )
        self.clip.require(
            self.sampler.cache_interval == 1 or not self.clip.low_memory,
            f"clip.low_memory = true, and sampler.cache_interval = {self.sampler.cache_interval} "
            "keeps the features of one pass",
            "leave one of the two out",
        )
        limit = self.clip.memory_gb
        self.clip.require(
            not limit or self.estimated_gb <= limit,
            f"a bundle takes about {self.estimated_gb:.1f} GB in 16 bits, and clip.memory_gb is "
            f"{limit}",
            "choose a smaller clip.chunk or smaller frames, or set clip.low_memory = true",
        )

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, Any]]) -> Self:
        """Reads the five tables."""
        return cls(
            UnetConfig.from_table(tables.get("model", {}), "model"),
            SvdVaeConfig.from_table(tables.get("vae", {}), "vae"),
            ClipVisionConfig.from_table(tables.get("image_encoder", {}), "image_encoder"),
            ClipConfig.from_table(tables.get("clip", {}), "clip"),
            SvdSampler.from_table(tables.get("sampler", {}), "sampler"),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the five tables."""
        return {
            "model": self.unet.to_json(),
            "vae": self.vae.to_json(),
            "image_encoder": self.image_encoder.to_json(),
            "clip": self.clip.to_json(),
            "sampler": self.sampler.to_json(),
        }

    @property
    def parts(self) -> Mapping[str, Part]:
        """Image encoder, VAE, UNet."""
        clip = self.clip
        encoder = ClipVisionPart(self.image_encoder, clip.height, clip.width)
        encoders = (encoder,) if clip.image_encoder else ()
        return {part.group: part for part in (*encoders, self.vae_part, self.unet_part)}

    @property
    def estimated_gb(self) -> float:
        """10^9 bytes of all weights in 16 bits and of the largest activations."""
        parts = self.parts.values()
        elements = sum(part.weights_elements for part in parts)
        elements += max(part.playing_elements for part in parts)
        return 2 * elements / 1e9

    @property
    def unet_part(self) -> SvdUnetPart:
        """The UNet over this clip's frames."""
        halves = 2 if self.sampler.guided else 1
        batch = 1 if self.clip.low_memory else halves
        cached = self.sampler.cache_interval > 1
        return SvdUnetPart(self.unet, self.clip.frames, self.latent_size, halves, batch, cached)

    @property
    def vae_part(self) -> SvdVaePart:
        """The VAE over this clip's chunks."""
        clip = self.clip
        return SvdVaePart(self.vae, clip.height, clip.width, clip.chunk)

    @property
    def components(self) -> dict[str, str]:
        """Weights group of every component; the UNet runs between the VAE's two."""
        found = super().components
        order = (
            "image_encoder", "vae_encode", "condition_clip", "denoise", "denoise_shallow",
            "vae_decode",
        )  # fmt: skip
        return {name: found[name] for name in order if name in found}

    @property
    def conditioning_groups(self) -> tuple[str, ...]:
        """The image encoder, if there is one, and the VAE, which encodes the image."""
        return tuple(group for group in self.parts if group != self.quantized_group)

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of a latent frame."""
        return self.clip.height // STRIDE, self.clip.width // STRIDE

    @property
    def pipeline_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings of the scheduler."""
        return {"scheduler/scheduler_config.json": self.sampler.scheduler_settings}

    @classmethod
    def layouts(cls) -> "tuple[Layout, ...]":
        """Returns those of an image encoder, a VAE and a UNet."""
        from vidc.exporters.parts.clip_vision.names import LAYOUTS as IMAGES
        from vidc.exporters.parts.svd_unet.names import LAYOUTS as UNETS
        from vidc.exporters.parts.svd_vae.names import LAYOUTS as VAES

        return (*IMAGES, *VAES, *UNETS)

    def spec(self) -> dict[str, Any]:
        """Returns the sizes and the sampler's noise levels, as the program's spec names them."""
        clip = self.clip
        return {
            "frames": clip.frames,
            "chunk": clip.chunk,
            "latent": [LATENT_CHANNELS, *self.latent_size],
            "video": [clip.height, clip.width],
            "image_dim": self.unet.image_dim,
            "image_encoder": clip.image_encoder,
            "guidance": list(self.sampler.guidance),
            "two_passes": clip.low_memory,
            "sigmas": list(self.sampler.sigmas),
            "fresh_noise": self.sampler.kind == CONSISTENCY,
            "cache_interval": self.sampler.cache_interval,
        }

    def passes(self) -> tuple[Pass, ...]:
        """The image, then each denoising step: activations differ between them."""
        steps = range(self.sampler.steps)
        return (Pass("image", None), *(Pass(f"step.{step}", None) for step in steps))

    def pass_of(self, component: str, inputs: "Mapping[str, Tensor]") -> str:
        """Returns the image's pass, or the step with the nearest timestep."""
        if component not in ("denoise", "denoise_shallow"):
            return "image"
        timestep = float(inputs["timestep"])
        distances = [abs(time - timestep) for time in self.sampler.timesteps]
        return f"step.{distances.index(min(distances))}"

    def calibration_rollout(self) -> Rollout:
        """One clip for each image."""
        return Rollout(1, 1)

    def calls(self, layer: str) -> int:
        """Returns the passes of a clip that run a layer."""
        return self._passes(layer) if self.unet_part.rows(layer) else 0

    def _passes(self, layer: str) -> int:
        """Returns the passes of a clip that run a layer of ``denoise``."""
        part, sampler = self.unet_part, self.sampler
        steps = sampler.steps if part.is_shallow(layer) else sampler.full_steps
        return steps * part.halves // part.batch

    def fixed_work(self) -> tuple[FixedWork, ...]:
        """Convolutions of the UNet."""
        return tuple(
            FixedWork(2 * weight * rows, weight + 2 * rows, self._passes(name))
            for name, (weight, rows) in self.unet_part.convolutions.items()
        )

    def rollout_flops(self, rollout: Rollout, *, decoded: bool = True) -> float:
        """Estimates denoising steps of each clip, and its image."""
        part, full = self.unet_part, self.sampler.full_steps
        shallow = self.sampler.steps - full
        clip = part.halves * (full * part.pass_flops() + shallow * part.pass_flops(shallow=True))
        clip += self.vae_part.encode_flops
        encoder = self.parts.get(ClipVisionPart.group)
        clip += encoder.flops() if isinstance(encoder, ClipVisionPart) else 0.0
        decoding = self.decode_flops() if decoded else 0.0
        return rollout.blocks * (clip + decoding)

    def decode_flops(self) -> float:
        """Decoding one clip."""
        return self.clip.frames * self.vae_part.decode_flops

    def components_flops(self, rollout: Rollout) -> float:
        """The rollout: it calls every component."""
        return self.rollout_flops(rollout)
