"""A calibration made by hand, of the smallest preset."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.artifact import model_tables, write_calibration
from vidc.compiler.quantize.calibrated_tensors import tensor_shapes
from vidc.compiler.quantize.document import SCHEMA, Document, FileNote, PromptsNote, Rollouts
from vidc.exporters.families.causal_video import CausalVideo
from vidc.runtime.programs.stream import StreamSpec

WEIGHTS = "ab" * 32


@pytest.fixture(scope="session")
def model() -> CausalVideo:
    return resolve("tiny", gpu="cpu", environ={}).model


@pytest.fixture(scope="session")
def stream(model: CausalVideo) -> StreamSpec:
    return program_spec(model)


@dataclass(frozen=True)
class Made:
    """Contents of the files that ``write`` writes."""

    document: Document
    tensors: dict[str, Tensor]

    def write(self, folder: Path) -> Path:
        folder.mkdir()
        write_calibration(folder, self.document, self.tensors)
        return folder

    def with_tensor(self, name: str, tensor: Tensor) -> "Made":
        return replace(self, tensors={**self.tensors, name: tensor})


@pytest.fixture
def made(model: CausalVideo) -> Made:
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in tensor_shapes(model, len(model.passes())).items():
        drawn = torch.rand(shape, generator=generator) + 0.1
        tensors[name] = -drawn if name.endswith(".low") else drawn
    document = Document(
        schema=SCHEMA,
        weights=WEIGHTS,
        source={"random_weights": 1},
        model=model_tables(model),
        precision="fp32",
        device="cpu",
        prompts=PromptsNote("synthetic", 2, "cd" * 32, ()),
        seed=0,
        recipe=Rollouts("max", 6, 5),
        groups=model.passes(),
        versions={"torch": "2.13.0"},
        tensors=FileNote(0, ""),
    )
    return Made(document, tensors)
