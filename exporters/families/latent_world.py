"""Family ``latent_world``: live worlds that make latents from actions and decode each of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vidc.exporters.families.ddim import DdimSampler
from vidc.exporters.families.family import Family, FixedWork, LayerKind, Pass, Rollout
from vidc.exporters.part import Part
from vidc.exporters.parts.gamengen_unet.config import MAX_NOISE, GameNGenConfig
from vidc.exporters.parts.gamengen_unet.part import ONCE, GameNGenUnetPart
from vidc.exporters.parts.sd_vae.part import SdVaePart
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS, STRIDE, SvdVaeConfig
from vidc.exporters.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.exporters.checkpoint.layout import Layout


@dataclass(frozen=True)
class LatentFrameConfig(Table):
    """Height and width of a frame, in pixels."""

    height: int
    width: int

    def __post_init__(self) -> None:
        self.require_sizes("frames", "height", "width")
        for name in ("height", "width"):
            size = getattr(self, name)
            self.require(
                size % STRIDE == 0,
                f"frames.{name} = {size} is not a multiple of {STRIDE}",
                f"use {max(1, size // STRIDE) * STRIDE} or {(size // STRIDE + 1) * STRIDE}",
            )


@dataclass(frozen=True)
class LatentWorld(Family):
    """A GameNGen world: a UNet over past latents and actions, and the VAE of its latents."""

    unet: GameNGenConfig
    vae: SvdVaeConfig
    frames: LatentFrameConfig
    sampler: DdimSampler

    name: ClassVar[str] = "latent_world"
    program: ClassVar[str] = "latent_world"
    tables: ClassVar[Mapping[str, type[Table]]] = {
        "model": GameNGenConfig,
        "vae": SvdVaeConfig,
        "frames": LatentFrameConfig,
        "sampler": DdimSampler,
    }
    groups: ClassVar[tuple[str, ...]] = (SdVaePart.group, GameNGenUnetPart.group)
    decoder_group: ClassVar[str] = SdVaePart.group
    quantized_group: ClassVar[str] = GameNGenUnetPart.group
    recipes: ClassVar[Mapping[str, str]] = {"int8": "latent-world-int8"}
    calibrated_tables = ("model", "frames", "sampler")
    layer_kinds: ClassVar[tuple[LayerKind, ...]] = (
        LayerKind("self-attention", "**.attn1.**"),
        LayerKind("cross-attention", "**.attn2.**"),
        LayerKind("feed-forward", "**.ff.net.**"),
        LayerKind("projections", "**.proj_*"),
    )
    block_prefix: ClassVar[str] = "down_blocks."

    def __post_init__(self) -> None:
        self.sampler.require(
            self.sampler.past_noise <= MAX_NOISE,
            f"sampler.past_noise = {self.sampler.past_noise} is above {MAX_NOISE}, the most that "
            "the network was trained with",
            f"set it from 0 to {MAX_NOISE}",
        )
        self.frames.require(
            self.unet_part.normalizes,
            f"frames of {self.frames.height}x{self.frames.width} leave one value for each group of "
            "a norm where model.channels are few",
            "use larger frames, or more channels",
        )
        past = LATENT_CHANNELS * self.unet.past
        self.sampler.require(
            self.sampler.zeroed <= past,
            f"sampler.zeroed = {self.sampler.zeroed}, and past latents have {past} channels",
            f"set it from 1 to {past}, or to 0 for all of them",
        )

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, Any]]) -> Self:
        """Reads the four tables; all but that of the frames may be missing."""
        return cls(
            GameNGenConfig.from_table(tables.get("model", {}), "model"),
            SvdVaeConfig.from_table(tables.get("vae", {}), "vae"),
            LatentFrameConfig.from_table(tables.get("frames", {}), "frames"),
            DdimSampler.from_table(tables.get("sampler", {}), "sampler"),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the four tables."""
        return {
            "model": self.unet.to_json(),
            "vae": self.vae.to_json(),
            "frames": self.frames.to_json(),
            "sampler": self.sampler.to_json(),
        }

    @property
    def parts(self) -> Mapping[str, Part]:
        """VAE and UNet."""
        return {part.group: part for part in (self.vae_part, self.unet_part)}

    @property
    def components(self) -> dict[str, str]:
        """Weights group of every component; the UNet runs between the VAE's two."""
        found = super().components
        order = ("vae_encode", "condition_frame", "denoise", "vae_decode")
        return {name: found[name] for name in order}

    @property
    def unet_part(self) -> GameNGenUnetPart:
        """The UNet at this model's sizes."""
        sampler = self.sampler
        zeroed = (sampler.zeroed or LATENT_CHANNELS * self.unet.past) if sampler.guided else 0
        return GameNGenUnetPart(
            self.unet, self.vae_part.latent_size, sampler.steps, 2 if sampler.guided else 1, zeroed,
            sampler.past_noise > 0,
        )  # fmt: skip

    @property
    def vae_part(self) -> SdVaePart:
        """The VAE of these frames."""
        return SdVaePart(self.vae, self.frames.height, self.frames.width)

    @property
    def pipeline_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings of the scheduler."""
        return {"noise_scheduler/scheduler_config.json": self.sampler.scheduler_settings}

    @classmethod
    def layouts(cls) -> "tuple[Layout, ...]":
        """Returns those of a VAE and a UNet."""
        from vidc.exporters.parts.gamengen_unet.names import LAYOUTS as UNETS
        from vidc.exporters.parts.sd_vae.names import LAYOUTS as VAES

        return (*VAES, *UNETS)

    def spec(self) -> dict[str, Any]:
        """Returns the sizes and the sampler, as the program's spec names them."""
        return {
            "latent": [LATENT_CHANNELS, *self.vae_part.latent_size],
            "video": [self.frames.height, self.frames.width],
            "past": self.unet.past,
            "actions": self.unet.actions,
            "one_hot": True,
            "timesteps": list(self.sampler.timesteps),
            "alphas": list(self.sampler.alphas),
            "guidance": self.sampler.guidance,
            "past_noise": self.sampler.past_noise,
            "bucket": self.unet.bucket(self.sampler.past_noise),
        }

    def passes(self) -> tuple[Pass, ...]:
        """The conditioning of a frame, then each step: activations differ between them."""
        steps = enumerate(self.sampler.timesteps)
        return (Pass("frame", None), *(Pass(f"step.{step}", time) for step, time in steps))

    def pass_of(self, component: str, inputs: "Mapping[str, Tensor]") -> str:
        """Returns the pass of the frame, or the step."""
        return f"step.{int(inputs['step'])}" if component == "denoise" else "frame"

    def calibration_rollout(self) -> Rollout:
        """Frames until all past latents are generated ones, then as many frames more."""
        return Rollout(2 * self.unet.past, 1)

    def calls(self, layer: str) -> int:
        """Returns the calls of a layer in one frame."""
        return 1 if layer.startswith(ONCE) else self.sampler.steps

    def fixed_work(self) -> tuple[FixedWork, ...]:
        """Convolutions of the UNet."""
        return tuple(
            FixedWork(2 * weight * rows, weight + 2 * rows, self.sampler.steps)
            for weight, rows in self.unet_part.convolutions.values()
        )

    def rollout_flops(self, rollout: Rollout, *, decoded: bool = True) -> float:
        """Estimates the steps of each frame, and its decoding."""
        frame = self.sampler.steps * self.unet_part.step_flops
        return rollout.blocks * (frame + (self.decode_flops() if decoded else 0.0))

    def decode_flops(self) -> float:
        """Decoding one frame."""
        return self.vae_part.decode_flops

    def components_flops(self, rollout: Rollout) -> float:
        """The rollout, and the encoding of one frame."""
        return self.rollout_flops(rollout) + self.vae_part.encode_flops
