"""Family ``world``: live world models that make frame after frame from past ones and actions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vidc.exporters.families.family import Family, FixedWork, Pass, Rollout
from vidc.exporters.part import Part
from vidc.exporters.parts.diamond_unet.config import DenoiserConfig, UpsamplerConfig
from vidc.exporters.parts.diamond_unet.part import GROUP, DiamondUNetPart
from vidc.exporters.table import MAX_SIZE, Table

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.exporters.checkpoint.layout import Layout

_MAX_CHURN = math.sqrt(2) - 1
"""Largest share by which a step may raise its noise level (arXiv 2206.00364, algorithm 2)."""


@dataclass(frozen=True)
class FrameConfig(Table):
    """Height and width, in pixels, of a frame that the denoiser makes, before any upsampler."""

    height: int
    width: int

    def __post_init__(self) -> None:
        self.require_sizes("frames", "height", "width")


@dataclass(frozen=True)
class SamplerConfig(Table):
    """A stochastic EDM sampler, under the names of DIAMOND's config.

    Attributes:
        steps: denoising steps.
        order: 1 for Euler's method, 2 for Heun's.
        sigma_min: noise level of the last step.
        sigma_max: noise level of the first step.
        rho: curvature of the levels between; see ``sigmas``.
        s_churn: noise added over all steps, as a share of each step's level.
        s_tmin: least noise level at which it is added.
        s_tmax: largest noise level at which it is added.
        s_noise: standard deviation of that noise.
        s_cond: sigma of the noise that past frames get.
    """

    steps: int = 1
    order: int = 1
    sigma_min: float = 0.002
    sigma_max: float = 5.0
    rho: float = 7.0
    s_churn: float = 0.0
    s_tmin: float = 0.0
    s_tmax: float = 1e6
    s_noise: float = 1.0
    s_cond: float = 0.0

    def __post_init__(self) -> None:
        self.require_sizes("sampler", "steps")
        self.require(
            self.order in (1, 2), f"sampler.order = {self.order}", "set it to 1 (Euler) or 2 (Heun)"
        )
        self.require(
            0 < self.sigma_min < self.sigma_max and self.rho >= 1,
            f"sampler.sigma_min = {self.sigma_min}, sigma_max = {self.sigma_max}, rho = {self.rho}",
            "sigma_min must lie between 0 and sigma_max, and rho be 1 or more",
        )
        self.require(
            min(self.s_churn, self.s_tmin, self.s_tmax, self.s_noise, self.s_cond) >= 0,
            "a level of the sampler's noise is negative",
            "set s_churn, s_tmin, s_tmax, s_noise and s_cond to 0 or more",
        )

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise level before each step, as in arXiv 2206.00364, equation 5."""
        ends = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        shares = [step / (self.steps - 1) for step in range(1, self.steps)]
        later = [(ends[0] + share * (ends[1] - ends[0])) ** self.rho for share in shares]
        return (self.sigma_max, *later)

    def spec(self) -> dict[str, Any]:
        """Returns the sampler as the program's spec names it."""
        sigmas, gamma = self.sigmas, min(self.s_churn / self.steps, _MAX_CHURN)
        return {
            "sigmas": [*sigmas],
            "gammas": [gamma if self.s_tmin <= each <= self.s_tmax else 0.0 for each in sigmas],
            "churn_noise": self.s_noise,
            "past_noise": self.s_cond,
            "order": self.order,
        }

    @property
    def calls(self) -> int:
        """Calls of the network in one frame."""
        return self.order * (self.steps - 1) + 1


@dataclass(frozen=True)
class World(Family):
    """A DIAMOND world model: a denoiser and, if its factor is above 1, an upsampler."""

    denoiser: DenoiserConfig
    upsampler: UpsamplerConfig
    frames: FrameConfig
    denoise: SamplerConfig
    upsample: SamplerConfig

    name: ClassVar[str] = "world"
    program: ClassVar[str] = "world"
    tables: ClassVar[Mapping[str, type[Table]]] = {
        "denoiser": DenoiserConfig,
        "upsampler": UpsamplerConfig,
        "frames": FrameConfig,
        "denoise": SamplerConfig,
        "upsample": SamplerConfig,
    }
    groups: ClassVar[tuple[str, ...]] = (GROUP,)
    decoder_group: ClassVar[str] = GROUP
    quantized_group: ClassVar[str] = GROUP
    recipes: ClassVar[Mapping[str, str]] = {"int8": "world-int8"}
    calibrated_tables = ("denoiser", "upsampler", "frames", "denoise", "upsample")

    def __post_init__(self) -> None:
        factor = self.upsampler.factor
        self.frames.require(
            factor * max(self.frames.height, self.frames.width) <= MAX_SIZE,
            f"frames.height x frames.width with upsampler.factor = {factor} is too large",
            "choose smaller ones",
        )
        self.denoise.require(
            self.denoise.s_cond == 0 or self.denoiser.noised_past,
            f"denoise.s_cond = {self.denoise.s_cond}, and the denoiser is not told about noise of "
            "past frames",
            "set denoise.s_cond to 0, or denoiser.noised_past to true",
        )
        self.upsample.require(
            self.upsample.s_cond == 0,
            f"upsample.s_cond = {self.upsample.s_cond}: the upsampler takes past frames without "
            "noise",
            "set it to 0",
        )

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, Any]]) -> Self:
        """Reads the five tables; those of the upsampler and of both samplers may be missing."""
        given = {name: tables.get(name, {}) for name in cls.tables}
        return cls(
            DenoiserConfig.from_table(given["denoiser"], "denoiser"),
            UpsamplerConfig.from_table(given["upsampler"], "upsampler"),
            FrameConfig.from_table(given["frames"], "frames"),
            SamplerConfig.from_table(given["denoise"], "denoise"),
            SamplerConfig.from_table(given["upsample"], "upsample"),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the five tables."""
        return {name: getattr(self, name).to_json() for name in self.tables}

    @property
    def parts(self) -> Mapping[str, Part]:
        """One part: both networks come from one checkpoint."""
        return {GROUP: self.part}

    @property
    def part(self) -> DiamondUNetPart:
        """The networks at this model's sizes."""
        return DiamondUNetPart(self.denoiser, self.upsampler, self.frames.height, self.frames.width)

    @classmethod
    def layouts(cls) -> "tuple[Layout, ...]":
        """Returns that of an agent's state dict."""
        from vidc.exporters.parts.diamond_unet.names import LAYOUTS

        return LAYOUTS

    @property
    def _upsamples(self) -> bool:
        return self.upsampler.factor > 1

    def spec(self) -> dict[str, Any]:
        """Returns the sizes and both samplers, as the program's spec names them."""
        return {
            "low": [self.frames.height, self.frames.width],
            "factor": self.upsampler.factor,
            "past": self.denoiser.past,
            "past_full": self.upsampler.past if self._upsamples else 0,
            "actions": self.denoiser.actions,
            "one_hot": self.denoiser.one_hot,
            "denoise": self.denoise.spec(),
            "upsample": self.upsample.spec() if self._upsamples else None,
        }

    @property
    def _samplers(self) -> Mapping[str, SamplerConfig]:
        """Sampler of each component."""
        found = {"denoise": self.denoise, "upsample": self.upsample}
        return {name: found[name] for name in self.part.component_names}

    def passes(self) -> tuple[Pass, ...]:
        """Each step of both networks; an EDM step has a noise level in place of a timestep."""
        return tuple(
            Pass(f"{name}.{step}", None)
            for name, sampler in self._samplers.items()
            for step in range(sampler.steps)
        )

    def pass_of(self, component: str, inputs: "Mapping[str, Tensor]") -> str:
        """Returns the component's step with the nearest noise level."""
        sigma = float(inputs["sigma"])
        distances = [abs(each - sigma) for each in self._samplers[component].sigmas]
        return f"{component}.{distances.index(min(distances))}"

    def calibration_rollout(self) -> Rollout:
        """Frames until all past frames are generated ones, then ``past + 1`` more."""
        return Rollout(2 * self.denoiser.past + 1, 1)

    def calls(self, layer: str) -> int:
        """Returns the calls of the layer's network in one frame."""
        sampler = self.upsample if layer.startswith("upsampler.") else self.denoise
        return sampler.calls

    def fixed_work(self) -> tuple[FixedWork, ...]:
        """Convolutions and attention of both networks."""
        part = self.part
        works = {"denoise": part.denoise_work, "upsample": part.upsample_work}
        return tuple(
            FixedWork(work.flops, work.weights + part.working_elements(name), sampler.calls)
            for name, sampler in self._samplers.items()
            for work in (works[name],)
        )

    def rollout_flops(self, rollout: Rollout, *, decoded: bool = True) -> float:
        """Estimates all calls of both networks; nothing else takes time."""
        return float(rollout.blocks * sum(work.flops * work.calls for work in self.fixed_work()))

    def decode_flops(self) -> float:
        """Returns 0: frames are not decoded."""
        return 0.0

    def components_flops(self, rollout: Rollout) -> float:
        """Estimates the rollout, which calls every component."""
        return self.rollout_flops(rollout)
