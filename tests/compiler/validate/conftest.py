"""A model of a few thousand parameters with random weights, run by PyTorch itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from vidc.compiler.build.golden import PlayGolden
from vidc.compiler.build.load import Load
from vidc.compiler.config.program import program_spec
from vidc.compiler.store.stage import Workspace
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.play import Player
from vidc.compiler.validate.reference import EagerEngine, eager_engines, player
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.families.causal_video import CausalVideo, SamplerConfig, StreamConfig
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.plugins.names import weights_path
from vidc.runtime.programs.stream import StreamSpec

GROUPS = ("transformer", "vae")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Model:
    """A model, its engines in float32, and where its weights lie."""

    config: CausalVideo
    stream: StreamSpec
    engines: dict[str, EagerEngine]
    inputs: dict[str, Path]

    def player(
        self,
        engines: Mapping[str, EagerEngine] | None = None,
        device: torch.device = CPU,
    ) -> Player:
        """A player of its program, over its own engines by default."""
        return player(self.config, self.engines if engines is None else engines, device)

    def golden(self, output: Path, scenario: Scenario, precision: str = "fp32") -> Golden:
        """Golden data of a scenario, with every group at this precision."""
        workspace = Workspace(output, self.inputs, print)
        precisions = dict.fromkeys(GROUPS, precision)
        PlayGolden(self.config, precisions, scenario, (), "cpu", None).run(workspace)
        return Golden.load(output)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Window 9, sink 3, block 3: ``recache_6`` recomputes a filling ring and a wrapped one."""
    config = CausalVideo(
        TransformerConfig(
            dim=48, ffn_dim=64, heads=2, layers=1, freq_dim=16, text_len=6, text_dim=20
        ),
        VaeConfig(base_dim=4, res_blocks=1),
        StreamConfig(height=16, width=32, window=9, sink=3, block=3),
        SamplerConfig(steps=(1000, 500)),
    )
    inputs = {}
    for group in GROUPS:
        folder = inputs[f"load:{group}"] = tmp_path_factory.mktemp(group)
        load = Load(config.parts[group], type(config), "fp32", 1)
        load.run(Workspace(folder, {}, print))
    weights = {group: inputs[f"load:{group}"] / weights_path(group) for group in GROUPS}
    precisions = dict.fromkeys(GROUPS, "fp32")
    engines = eager_engines(config, weights, precisions, torch.device("cpu"))
    return Model(config, program_spec(config), engines, inputs)
