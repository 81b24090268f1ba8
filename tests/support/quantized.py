"""Quantized transformers with ranges that are drawn, and what they should compute."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from transformer import Model

from vidc.compiler.config.recipe import Recipe, parse_recipe
from vidc.compiler.quantize.artifact import Calibration, model_tables
from vidc.compiler.quantize.attention import (
    attention_types,
    attention_weights,
    quantized_attention,
)
from vidc.compiler.quantize.calibrated_tensors import SPREAD, tensor_shapes
from vidc.compiler.quantize.document import SCHEMA, Document, FileNote, PromptsNote, Rollouts
from vidc.compiler.quantize.lowering import QuantizedLinear, quantized_linears, sites
from vidc.compiler.quantize.programs import placeholders, quantize, read_weights
from vidc.compiler.quantize.rings import asked_rings, round_rings
from vidc.compiler.quantize.support import AOTI_GPU, QuantizationSupport
from vidc.compiler.quantize.tensors import asked_linears, quantized_types
from vidc.compiler.quantize.weights import input_amax, input_mean, quantized_weights
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.component import Component
from vidc.exporters.families.causal_video import CausalVideo

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


class Quantized:
    """A model with the Linears of a recipe in 8 bits, as programs have them."""

    def __init__(self, model: Model, recipe: Recipe, form: QuantizationSupport = AOTI_GPU) -> None:
        self.model = model
        self.calibration = calibration(model.config, reach=3.0)
        self.linears: dict[str, QuantizedLinear] = quantized_linears(recipe, model.config, form)
        stored = {name: LazyTensor.of(tensor) for name, tensor in model.weights.items()}
        self.attentions = quantized_attention(recipe, model.config, form)
        made = quantized_weights(stored, self.linears, self.calibration, AOTI_GPU)
        made |= attention_weights(self.attentions, self.calibration)
        self.weights = {f"transformer.{name}": tensor.load() for name, tensor in made.items()}

    def quantize(self, name: str, program: ExportedProgram) -> None:
        """Quantizes a component's program, and fills it in."""
        types = quantized_types(self.model.weights, self.linears, AOTI_GPU)
        asked = asked_linears(read_weights(program), "transformer", self.linears, AOTI_GPU)
        types |= attention_types(self.attentions)
        named = {f"transformer.{n}": kind for n, kind in types.items()}
        quantize(name, program, asked, named)
        signature = self.model.component(name, "fp32").signature
        rings = asked_rings(program, signature, "transformer", self.attentions)
        round_rings(program, signature, rings, placeholders(program, named))
        for weight in program.state_dict:
            program.state_dict[weight] = nn.Parameter(self.weights[weight], requires_grad=False)

    def imitated(self, name: str) -> Component:
        """A component in float32 whose Linears round weights and inputs as 8 bits would."""
        component = self.model.component(name, "fp32")
        modules = dict(component.module.named_modules())
        shared = sites(self.linears.values())
        for layer, linear in self.linears.items():
            module = modules[f"transformer.{layer}"]
            weight = module.weight.detach()
            end = weight.abs().amax(1, keepdim=True)
            module.weight = nn.Parameter(_rounded(weight, end, linear.format.weights))
            if linear.site is not None and not linear.static:
                module.register_forward_pre_hook(
                    partial(_round_tokens, form=linear.format.activations)
                )
            elif linear.site is not None:
                members = shared[linear.site]
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
