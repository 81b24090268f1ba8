"""The demo's stages over the smallest networks, each with the weights that training begins with."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from demo_model.networks import PRESET, Sizes
from demo_model.stages import STAGES, Plan, Stage

SMALL = {
    "dim": 48, "ffn_dim": 64, "heads": 2, "layers": 2, "freq_dim": 32, "text_dim": 32,
    "base_dim": 8, "widths": [16, 8, 8, 8], "encoder_width": 8, "height": 32, "width": 32,
}  # fmt: skip
PLAN = Plan(
    vae_clips=1, clips=2, first_blocks=3, blocks=5, farthest=12, shelves=2,
    shelf_clips=2, shelf_first_blocks=4, shelf_steps=2, measured=1,
)  # fmt: skip


def write_preset(folder: Path) -> Path:
    """Writes the demo's preset with smaller numbers."""
    text, path = PRESET.read_text(), folder / "small.toml"
    for key, value in SMALL.items():
        text = re.sub(rf"^{key} = .*", f"{key} = {value}", text, flags=re.M)
    path.write_text(text)
    return path


def new_stage(kind: type[Stage], sizes: Sizes, done: Mapping[str, Any]) -> Stage:
    """Returns a stage after those of which checkpoints are given."""
    torch.manual_seed(0)
    return kind(sizes, PLAN, "cpu", 0, done)


def checkpoints(sizes: Sizes) -> dict[str, Any]:
    """Returns checkpoints of finished stages."""
    done: dict[str, Any] = {}
    for kind in STAGES:
        stage = new_stage(kind, sizes, done)
        ema = {name: weight.detach() for name, weight in stage.network.named_parameters()}
        if kind.name == "flow":  # Before training, flows are zero.
            torch.nn.init.normal_(ema["transformer.proj_out.weight"], std=0.1)
        done[kind.name] = {"ema": ema, "facts": stage.facts(), "step": 0, "seconds": 0.0, "seed": 0}
    return done
