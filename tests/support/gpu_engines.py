"""Components of a small transformer as engines on a GPU, beside the same in PyTorch."""

from pathlib import Path

import torch
import transformer

from vidc.compiler.backends import CompiledEngine
from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.component import Component
from vidc.runtime import manifest
from vidc.runtime.engines import Engine
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

CUDA = torch.device("cuda")


def loaded(built: CompiledEngine, precision: str, folder: Path) -> tuple[Engine, Weights]:
    """Loads an engine of the folder, and the weights in its ``transformer.safetensors``."""
    entry = manifest.Engine(
        "aoti", built.loader, built.version, precision, built.files, built.signature,
        dict(built.options), built.requires,
    )  # fmt: skip
    weights = Weights({"transformer": folder / "transformer.safetensors"}, CUDA)
    return load(Files(folder), entry, weights, CUDA), weights


def eager(component: Component) -> EagerEngine:
    """Returns PyTorch's engine of a component on the GPU."""
    component.module.to(CUDA)
    return EagerEngine(component)


def played(engine: Engine, position: int) -> dict[str, torch.Tensor]:
    """Outputs and rings of some blocks from this position on, float32 on the CPU."""
    states, buffers = States([engine.signature], CUDA), Buffers(engine.signature, CUDA)
    for name, value in transformer.filled(engine.signature).items():
        states[name].copy_(value)
    found = {}
    for block, given in enumerate(transformer.blocks(engine.signature, position)):
        buffers.set(given)
        engine.run(buffers, states)
        found |= {f"{s.name} {block}": buffers[s.name].clone() for s in engine.signature.outputs}
    found |= {s.name: states[s.name] for s in engine.signature.states if s.writes}
    return {name: value.float().cpu() for name, value in found.items()}


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2, computed in float64."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()
