"""A demo model of the smallest sizes."""

from pathlib import Path

import pytest
import torch
from demo_model.training.networks import Sizes, demo_sizes

PRESET = """
description = "The demo model's stream over the smallest networks"
extends = "demo"
[model]
dim = 48
ffn_dim = 64
heads = 2
layers = 2
freq_dim = 32
text_dim = 16
[vae]
base_dim = 8
[stream]
height = 64
width = 64
"""


@pytest.fixture(scope="session")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("preset") / "small.toml"
    path.write_text(PRESET)
    return path


@pytest.fixture(scope="session")
def sizes(preset: Path) -> Sizes:
    torch.set_num_threads(1)
    return demo_sizes(preset)
