"""The demo's stages over the smallest networks, each with the weights that training begins with."""

import re
from pathlib import Path

import pytest
import torch
from demo_model.networks import PRESET, Sizes
from demo_model.stages import STAGES, Plan

SMALL = {
    "dim": 48, "ffn_dim": 64, "heads": 2, "layers": 2, "freq_dim": 32, "text_dim": 32,
    "base_dim": 8, "widths": [16, 8, 8, 8], "encoder_width": 8, "height": 32, "width": 32,
}  # fmt: skip


@pytest.fixture(scope="session")
def preset(tmp_path_factory) -> Path:
    """The demo's preset with smaller numbers."""
    text, path = PRESET.read_text(), tmp_path_factory.mktemp("preset") / "small.toml"
    for key, value in SMALL.items():
        text = re.sub(rf"^{key} = .*", f"{key} = {value}", text, flags=re.M)
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def sizes(preset) -> Sizes:
    torch.set_num_threads(1)
    return Sizes.read(preset)


@pytest.fixture(scope="session")
def plan() -> Plan:
    return Plan(
        vae_clips=1, clips=2, first_blocks=3, blocks=5, farthest=12, shelves=2,
        shelf_clips=2, shelf_first_blocks=4, shelf_steps=2, measured=1,
    )  # fmt: skip


@pytest.fixture(scope="session")
def new_stage(sizes, plan):
    """Makes the stage of a class, after those of which checkpoints are given."""

    def make(kind, done):
        torch.manual_seed(0)
        return kind(sizes, plan, "cpu", 0, done)

    return make


@pytest.fixture(scope="session")
def done(new_stage) -> dict:
    """Checkpoints of finished stages."""
    finished: dict = {}
    for kind in STAGES:
        stage = new_stage(kind, finished)
        ema = {name: weight.detach() for name, weight in stage.network.named_parameters()}
        if kind.name == "flow":  # Before training, flows are zero.
            torch.nn.init.normal_(ema["transformer.proj_out.weight"], std=0.1)
        state = {"ema": ema, "facts": stage.facts(), "step": 0, "seconds": 0.0, "seed": 0}
        finished[kind.name] = state
    return finished
