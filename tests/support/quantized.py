"""Quantized transformers with ranges that are drawn, and what they should compute."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformer import Model

from vidc.compiler.config.recipe import Recipe, parse_recipe
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.artifact import Calibration, model_tables
from vidc.compiler.quantize.calibrated_tensors import SPREAD, tensor_shapes
from vidc.compiler.quantize.document import SCHEMA, Document, FileNote, PromptsNote, Rollouts
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.linears import LinearSpec, by_owner, linears_of
from vidc.compiler.quantize.modules import components_of, quantized_components
from vidc.compiler.quantize.support import AOTI_GPU, QuantizationSupport
from vidc.compiler.quantize.weights import input_amax, input_mean, quantized_state
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.component import Component
from vidc.exporters.export import export_component
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.models import with_weights
from vidc.exporters.onnx.quantized import ONNXRUNTIME

ENDS = {"fp8": 448.0, "int8": 127.0}


def calibration(config: CausalVideo, reach: float = 1.0) -> Calibration:
    """Ranges of no rollout; no two tensors reach equally far."""
    drawn = torch.Generator().manual_seed(0)
    shapes = tensor_shapes(config, len(config.passes()))
    spreads = {f"{name}.{of}" for name in shapes if name.endswith(".input") for of in SPREAD}
    tensors = {
        name: reach * (torch.rand(shape, generator=drawn) + 0.1) * (1 + index / 50)
        for index, (name, shape) in enumerate((n, s) for n, s in shapes.items() if n not in spreads)
    }
    for name in [name for name in tensors if name.endswith(".input")]:
        largest = tensors[name].amax(0)
        spread = {"low": -largest / 2, "mean": largest / 4, "high": largest}
        tensors |= {f"{name}.{of}": value for of, value in spread.items()}
    document = Document(
        SCHEMA, "ab" * 32, {}, model_tables(config), "fp32", "cpu",
        PromptsNote("synthetic", 2, "cd" * 32, ()), 0, Rollouts("max", 6, 5), config.passes(), {},
        FileNote(0, ""),
    )  # fmt: skip
    return Calibration(document, tensors)


@dataclass(frozen=True)
class Drawn:
    """Weights of a model, the formats of its layers, and its calibration."""

    config: CausalVideo
    weights: dict[str, LazyTensor]
    formats: Quantization
    calibration: Calibration

    @property
    def linears(self) -> dict[str, LinearSpec]:
        return linears_of(self.formats)

    def types(self, precision: str = "fp32") -> Mapping[str, Tensor]:
        """The state of the quantized network, without values."""
        part = self.config.quantized_part
        network = part.network(precision)
        quantized_components(part, self.formats, network)
        return network.state_dict()

    def state(self) -> dict[str, LazyTensor]:
        """The tensors that a build stores."""
        return quantized_state(self.types(), self.weights, self.formats, self.calibration)


class Quantized:
    """A model whose layers are a recipe's modules, with drawn ranges."""

    def __init__(
        self, model: Model, recipe: Recipe, support: QuantizationSupport = AOTI_GPU
    ) -> None:
        self.model, self.part = model, model.config.quantized_part
        self.calibration = calibration(model.config, reach=3.0)
        self.formats = supported_formats(recipe, model.config, support)
        self.linears: dict[str, LinearSpec] = linears_of(self.formats)

    def state(self, precision: str) -> dict[str, Tensor]:
        """The network's state; like those of ``imitated``, its 8-bit weights are float32's."""
        network = self.part.network(precision)
        quantized_components(self.part, self.formats, network)
        types = network.state_dict()
        loaded = {n: LazyTensor.of(tensor) for n, tensor in self.model.weights.items()}
        made = quantized_state(types, loaded, self.formats, self.calibration)
        return {name: tensor.load().to(types[name].dtype) for name, tensor in made.items()}

    @property
    def weights(self) -> dict[str, Tensor]:
        """The state in float32, by the names of programs."""
        return {f"transformer.{name}": tensor for name, tensor in self.state("fp32").items()}

    def component(self, name: str, precision: str = "fp32") -> Component:
        """A component with its weights."""
        network = self.part.network(precision)
        quantized_components(self.part, self.formats, network)
        with_weights(network, self.state(precision))
        return components_of(self.part, network)[name]

    def exported(self, name: str, precision: str, folder: Path, onnx: bool) -> ExportedComponent:
        """A component as a build exports it."""
        quantize = partial(quantized_components, self.part, self.formats)
        operators = ONNXRUNTIME if onnx else None
        return export_component(self.part, precision, name, folder, quantize, operators)

    def imitated(self, name: str) -> Component:
        """A component in float32 whose Linears round weights and inputs as 8 bits would."""
        component = self.model.component(name, "fp32")
        modules = dict(component.module.named_modules())
        shared = by_owner(self.linears.values())
        for layer, linear in self.linears.items():
            module = modules[f"transformer.{layer}"]
            weight = module.weight.detach()
            end = weight.abs().amax(1, keepdim=True)
            module.weight = nn.Parameter(_rounded(weight, end, linear.format.weights))
            if linear.owner is not None and not linear.static:
                module.register_forward_pre_hook(
                    partial(_round_tokens, form=linear.format.activations)
                )
            elif linear.owner is not None:
                members = shared[linear.owner]
                mean = input_mean(members, self.calibration) if linear.format.center else None
                end = input_amax(members, self.calibration, mean).max()
                if mean is not None:
                    module.bias = nn.Parameter(module.bias.detach() + weight @ mean)
                module.register_forward_pre_hook(
                    partial(_round_input, end=end, mean=mean, form=linear.format.activations)
                )
        return component


def fp8_linears(*layers: str) -> Recipe:
    """A recipe with these layers in FP8."""
    rule = {"layers": list(layers), "weights": "fp8", "activations": "fp8"}
    return parse_recipe({"description": "some", "linear": [rule]}, "some")


def _rounded(values: Tensor, end: Tensor, form: str) -> Tensor:
    scale = end / ENDS[form]
    steps = (values / scale).clamp(-ENDS[form], ENDS[form])
    return (steps.round() if form == "int8" else steps.to(torch.float8_e4m3fn).float()) * scale


def _round_tokens(
    module: nn.Module, arguments: tuple[Tensor, ...], form: str
) -> tuple[Tensor, ...]:
    end = arguments[0].abs().amax(-1, keepdim=True)
    return (_rounded(arguments[0], end, form), *arguments[1:])


def _round_input(
    module: nn.Module, arguments: tuple[Tensor, ...], end: Tensor, mean: Tensor | None, form: str
) -> tuple[Tensor, ...]:
    x = arguments[0] if mean is None else arguments[0] - mean.to(arguments[0].device)
    return (_rounded(x, end, form), *arguments[1:])
