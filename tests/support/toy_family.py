"""A family of another package: two parts, a state that is no ring, and no text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vidc.exporters.checkpoint.layout import Layout
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.component import Component
from vidc.exporters.draw import draw
from vidc.exporters.families.family import Family, FixedWork, Pass, Rollout
from vidc.exporters.models import PRECISIONS
from vidc.exporters.part import Part
from vidc.exporters.table import Table
from vidc.plugins.signature import DTYPE_NAMES, Access, Role, Signature, TensorSpec

PRESET = """
description = "A toy"
family = "toy"
[mixer]
width = {width}
[precision]
default = "fp32"
"""


@dataclass(frozen=True)
class MixerConfig(Table):
    width: int
    layers: int = 2

    def __post_init__(self) -> None:
        self.require_sizes("mixer", "width", "layers")


@dataclass(frozen=True)
class PainterConfig(Table):
    size: int = 16

    def __post_init__(self) -> None:
        self.require_sizes("painter", "size")


class Mix(nn.Module):
    """Component ``advance``: mixes what it is given with a running mean that it keeps."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, mean: Tensor) -> tuple[Tensor]:
        mean.copy_(0.5 * mean + 0.5 * x.to(mean.dtype))
        return (self.mixer(mean).float(),)


class Paint(nn.Module):
    """Component ``paint``: a hidden vector to the colors of a square."""

    def __init__(self, painter: nn.Module) -> None:
        super().__init__()
        self.painter = painter

    def forward(self, hidden: Tensor) -> tuple[Tensor]:
        return (torch.tanh(self.painter(hidden.to(self.painter.weight.dtype))).float(),)


class _ToyPart(Part):
    def random_weights(self, seed: int) -> dict[str, LazyTensor]:
        drawn = {n: draw(n, shape, seed) / shape[-1] ** 0.5 for n, shape in self.shapes().items()}
        return {name: LazyTensor.of(tensor) for name, tensor in drawn.items()}


@dataclass(frozen=True)
class Mixer(_ToyPart):
    group: ClassVar[str] = "mixer"
    config: MixerConfig
    component_names = ("advance",)

    def network(self, precision: str) -> nn.Module:
        width = self.config.width
        with torch.device("meta"):
            layers = [nn.Linear(width, width) for _ in range(self.config.layers)]
            return nn.Sequential(*layers).to(PRECISIONS[precision]).requires_grad_(False)

    def components(self, network: nn.Module) -> dict[str, Component]:
        shape, dtype = (1, self.config.width), DTYPE_NAMES[network.state_dict()["0.bias"].dtype]
        signature = Signature(
            (
                TensorSpec("x", shape, "float32", Role.INPUT),
                TensorSpec("mean", shape, dtype, Role.STATE, Access.READ_WRITE),
                TensorSpec("hidden", shape, "float32", Role.OUTPUT),
            )
        )
        return {"advance": Component("advance", Mix(network), signature)}

    def rows(self, linear: str) -> int:
        return 1


@dataclass(frozen=True)
class Painter(_ToyPart):
    group: ClassVar[str] = "painter"
    config: PainterConfig
    width: int
    component_names = ("paint",)

    def load_settings(self) -> dict[str, Any]:
        return {**super().load_settings(), "width": self.width}

    @property
    def colors(self) -> int:
        return 3 * self.config.size**2

    def network(self, precision: str) -> nn.Module:
        with torch.device("meta"):
            layer = nn.Linear(self.width, self.colors)
            return layer.to(PRECISIONS[precision]).requires_grad_(False)

    def components(self, network: nn.Module) -> dict[str, Component]:
        signature = Signature(
            (
                TensorSpec("hidden", (1, self.width), "float32", Role.INPUT),
                TensorSpec("colors", (1, self.colors), "float32", Role.OUTPUT),
            )
        )
        return {"paint": Component("paint", Paint(network), signature)}


@dataclass(frozen=True)
class Toy(Family):
    mixer: MixerConfig
    painter: PainterConfig

    name: ClassVar[str] = "toy"
    program: ClassVar[str] = "toy"
    tables: ClassVar[Mapping[str, type[Table]]] = {"mixer": MixerConfig, "painter": PainterConfig}
    groups: ClassVar[tuple[str, ...]] = ("mixer", "painter")
    quantized_group: ClassVar[str] = "mixer"
    decoder_group: ClassVar[str] = "painter"
    calibrated_tables = ("mixer",)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, Any]]) -> "Toy":
        mixer = MixerConfig.from_table(tables.get("mixer", {}), "mixer")
        return cls(mixer, PainterConfig.from_table(tables.get("painter", {}), "painter"))

    def to_json(self) -> dict[str, Any]:
        return {"mixer": self.mixer.to_json(), "painter": self.painter.to_json()}

    @property
    def parts(self) -> Mapping[str, Part]:
        return {"mixer": Mixer(self.mixer), "painter": Painter(self.painter, self.mixer.width)}

    @classmethod
    def layouts(cls) -> tuple[Layout, ...]:
        return (Layout("toy", ("0", "1")),)

    def spec(self) -> dict[str, Any]:
        return {"width": self.mixer.width, "size": self.painter.size}

    def passes(self) -> tuple[Pass, ...]:
        return (Pass("frame", None),)

    def pass_of(self, component: str, inputs: Mapping[str, Tensor]) -> str:
        return "frame"

    def calibration_rollout(self) -> Rollout:
        return Rollout(2, 1)

    def calls(self, layer: str) -> int:
        return 1

    def fixed_work(self) -> tuple[FixedWork, ...]:
        return ()

    def rollout_flops(self, rollout: Rollout, *, decoded: bool = True) -> float:
        return float(rollout.blocks * 2 * self.mixer.width**2 * self.mixer.layers)

    def decode_flops(self) -> float:
        return 0.0

    def components_flops(self, rollout: Rollout) -> float:
        return self.rollout_flops(rollout)
