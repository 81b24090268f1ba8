"""Family ``oasis``: live world models whose past frames are keys and values in rings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vidc.exporters.families.family import Family, FixedWork, LayerKind, Pass, Rollout
from vidc.exporters.part import Part
from vidc.exporters.parts.oasis.config import GROUP, OasisConfig
from vidc.exporters.parts.oasis.part import OasisPart
from vidc.exporters.parts.oasis_vae.config import OasisVaeConfig
from vidc.exporters.parts.oasis_vae.part import OasisVaePart
from vidc.exporters.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.exporters.checkpoint.layout import Layout

TRAINING_STEPS = 1000
CONDITION, CLEAN = "condition", "clean"
_SIGMOID = 3
"""The noise schedule is a sigmoid from minus this to this."""
_LEAST_KEPT = 0.001
"""Least share of the signal's variance that a training step keeps."""


@dataclass(frozen=True)
class StreamConfig(Table):
    """Height and width of a frame in pixels, and frames that the network sees."""

    height: int
    width: int
    window: int

    def __post_init__(self) -> None:
        self.require_sizes("stream", "height", "width", "window")


@dataclass(frozen=True)
class SamplerConfig(Table):
    """Steps of DDIM for v-prediction (arXiv 2010.02502, 2202.00512).

    Attributes:
        steps: denoising steps.
        context_timestep: timestep, of 1000, that the network gets for past frames. They have no
            noise, but they had some in training, so that a small timestep steadies long streams.
    """

    steps: int = 10
    context_timestep: int = 14

    def __post_init__(self) -> None:
        self.require(
            0 < self.steps <= TRAINING_STEPS,
            f"sampler.steps = {self.steps} does not lie between 1 and {TRAINING_STEPS}",
            "set it to the model's own, such as 10",
        )
        self.require(
            0 <= self.context_timestep < TRAINING_STEPS,
            f"sampler.context_timestep = {self.context_timestep} does not lie between 0 and "
            f"{TRAINING_STEPS - 1}",
            "set it to the model's own, such as 14",
        )

    @property
    def timesteps(self) -> tuple[int, ...]:
        """Timestep of each step, falling: 999, 899, … 99 for ten steps."""
        return tuple(
            math.floor(TRAINING_STEPS * step / self.steps) - 1 for step in range(self.steps, 0, -1)
        )


def kept_signal(timestep: int) -> float:
    """Returns the signal's share of a noisy latent's variance at a timestep of 1000.

    The sigmoid schedule of "Scalable Adaptive Computation for Iterative Generation" (arXiv
    2212.11972). It ends at 0, so the last training step is limited.
    """

    def level(time: int) -> float:
        def sigmoid(value: float) -> float:
            return 1 / (1 + math.exp(-value))

        low, high = sigmoid(-_SIGMOID), sigmoid(_SIGMOID)
        place = sigmoid(_SIGMOID * (2 * time / TRAINING_STEPS - 1))
        return (high - place) / (high - low)

    return max(level(timestep + 1), _LEAST_KEPT * level(timestep))


@dataclass(frozen=True)
class Oasis(Family):
    """A diffusion transformer over a ring of latent frames, and its VAE."""

    transformer: OasisConfig
    vae: OasisVaeConfig
    stream: StreamConfig
    sampler: SamplerConfig

    name: ClassVar[str] = "oasis"
    program: ClassVar[str] = "ring_world"
    tables: ClassVar[Mapping[str, type[Table]]] = {
        "model": OasisConfig,
        "vae": OasisVaeConfig,
        "stream": StreamConfig,
        "sampler": SamplerConfig,
    }
    groups: ClassVar[tuple[str, ...]] = (GROUP, OasisVaePart.group)
    decoder_group: ClassVar[str] = OasisVaePart.group
    quantized_group: ClassVar[str] = GROUP
    recipes: ClassVar[Mapping[str, str]] = {"int8": "oasis-int8", "fp8": "oasis-fp8"}
    calibrated_tables = ("model", "stream", "sampler")
    layer_kinds: ClassVar[tuple[LayerKind, ...]] = (
        LayerKind("spatial attention", "s_attn.**"),
        LayerKind("spatial feed-forward", "s_mlp.**"),
        LayerKind("temporal attention", "t_attn.**"),
        LayerKind("temporal feed-forward", "t_mlp.**"),
    )

    def __post_init__(self) -> None:
        stream, side = self.stream, self.vae.patch * self.transformer.patch
        stream.require(
            self.transformer.channels == self.vae.channels,
            f"model.channels = {self.transformer.channels} but vae.channels = {self.vae.channels}",
            "the transformer and its VAE must share their latents",
        )
        for name in ("height", "width"):
            size = getattr(stream, name)
            stream.require(
                size % side == 0 and size > side,
                f"stream.{name} = {size} is not a multiple of {side} (VAE patch x patch) above it",
                f"use {max(2, size // side) * side} or {(max(2, size // side) + 1) * side}",
            )

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, Any]]) -> Self:
        """Reads the four tables; that of the sampler may be missing."""
        return cls(
            OasisConfig.from_table(tables.get("model", {}), "model"),
            OasisVaeConfig.from_table(tables.get("vae", {}), "vae"),
            StreamConfig.from_table(tables.get("stream", {}), "stream"),
            SamplerConfig.from_table(tables.get("sampler", {}), "sampler"),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the four tables."""
        return {
            "model": self.transformer.to_json(),
            "vae": self.vae.to_json(),
            "stream": self.stream.to_json(),
            "sampler": self.sampler.to_json(),
        }

    @property
    def parts(self) -> Mapping[str, Part]:
        """Transformer and VAE."""
        return {GROUP: self.transformer_part, OasisVaePart.group: self.vae_part}

    @property
    def transformer_part(self) -> OasisPart:
        """The transformer over this stream's ring."""
        passes = self.sampler.steps + 1
        return OasisPart(self.transformer, self.latent_size, self.stream.window, passes)

    @property
    def vae_part(self) -> OasisVaePart:
        """The VAE over this stream's frames."""
        return OasisVaePart(self.vae, self.stream.height, self.stream.width)

    @property
    def components(self) -> dict[str, str]:
        """Weights group of every component; the VAE's encoder runs first, its decoder last."""
        found = super().components
        first = {"vae_encode": found["vae_encode"]}
        return first | {name: group for name, group in found.items() if name not in first}

    @classmethod
    def layouts(cls) -> "tuple[Layout, ...]":
        """Returns those of the transformer and of the VAE."""
        from vidc.exporters.parts.oasis.names import LAYOUTS as TRANSFORMERS
        from vidc.exporters.parts.oasis_vae.names import LAYOUTS as VAES

        return (*TRANSFORMERS, *VAES)

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of a latent frame."""
        return self.stream.height // self.vae.patch, self.stream.width // self.vae.patch

    def spec(self) -> dict[str, Any]:
        """Returns the sizes and the sampler's steps, as the program's spec names them."""
        config, sampler = self.transformer, self.sampler
        return {
            "latent": [config.channels, *self.latent_size],
            "video": [self.stream.height, self.stream.width],
            "tokens": self.transformer_part.frame_tokens,
            "past": self.stream.window - 1,
            "head_dim": config.head_dim,
            "actions": config.actions,
            "one_hot": False,
            "analog": list(config.analog),
            "timesteps": list(sampler.timesteps),
            "alphas": [*map(kept_signal, sampler.timesteps), 1.0],
            "context_timestep": sampler.context_timestep,
        }

    def passes(self) -> tuple[Pass, ...]:
        """The action, each denoising step, and the clean pass: activations differ between them."""
        steps = (Pass(f"step.{n}", float(t)) for n, t in enumerate(self.sampler.timesteps))
        return (Pass(CONDITION, None), *steps, Pass(CLEAN, float(self.sampler.context_timestep)))

    def pass_of(self, component: str, inputs: "Mapping[str, Tensor]") -> str:
        """Returns the pass of the action, that of the input ``step``, or the clean one."""
        if component == "denoise":
            return f"step.{int(inputs['step'])}"
        return CLEAN if component == "kv_update" else CONDITION

    def calibration_rollout(self) -> Rollout:
        """Frames until the ring is full, and two that push others out."""
        return Rollout(self.stream.window + 2, 1)

    def calls(self, layer: str) -> int:
        """Returns the passes that run a layer: the clean one ends at the last keys and values."""
        if self.transformer_part.conditions(layer):
            return 1
        last = f"blocks.{self.transformer.layers - 1}."
        skipped = (f"{last}t_attn.to_out", f"{last}t_mlp.", "final_layer.linear")
        return self.sampler.steps + (not layer.startswith(skipped))

    def fixed_work(self) -> tuple[FixedWork, ...]:
        """Attention and the patch embedding of each pass, and decoding."""
        part, vae = self.transformer_part, self.vae_part
        passes = FixedWork(part.attention_flops, part.ring_elements, part.passes)
        ((weight, rows),) = part.other_products
        patches = FixedWork(2 * weight * rows, weight, part.passes)
        return (passes, patches, FixedWork(vae.decode_flops(), vae.weights_elements, 1))

    def rollout_flops(self, rollout: Rollout, *, decoded: bool = True) -> float:
        """Estimates all passes of each frame, as if rings were full."""
        part = self.transformer_part
        frame = part.condition_flops + part.passes * part.pass_flops
        return float(rollout.blocks * (frame + (self.decode_flops() if decoded else 0.0)))

    def decode_flops(self) -> float:
        """Estimates decoding one frame."""
        return float(self.vae_part.decode_flops())

    def components_flops(self, rollout: Rollout) -> float:
        """Estimates the rollout and one call of the encoder."""
        return self.rollout_flops(rollout) + self.vae_part.encode_flops()
