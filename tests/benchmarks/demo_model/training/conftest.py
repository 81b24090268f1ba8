"""A demo model of the smallest sizes, and sessions over its eager components."""

from pathlib import Path

import pytest
import torch
from demo_model.train_flow import trainable
from demo_model.train_vae import Plan as VaePlan
from demo_model.train_vae import load_vae
from demo_model.train_vae import run as run_vae
from demo_model.training.checkpoint import Training, save
from demo_model.training.ema import Ema
from demo_model.training.loop import Options
from demo_model.training.networks import Sizes, demo_sizes
from demo_model.training.optimizer import optimizer_for
from demo_model.training.shelves import Encoder, Plan

from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.causal_wan.random_weights import random_weights
from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import CausalVideo

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


class NoDecoder:
    """Stands in for the VAE, which is no part of this."""

    def __init__(self, spec, frames: int) -> None:
        latent = TensorSpec("latent", (1, spec.block, *spec.latent), "float32", Role.INPUT)
        pixels = TensorSpec("frames", (1, frames, 3, *spec.video), "float32", Role.OUTPUT)
        self.signature = Signature((latent, pixels))

    def run(self, buffers, states) -> None:
        pass


@pytest.fixture(scope="session")
def model(sizes) -> CausalWan:
    network = CausalWan(sizes.config.transformer)
    network.load_state_dict(dict(random_weights(sizes.config.transformer, seed=5)))
    return network.requires_grad_(False)


@pytest.fixture(scope="session")
def open_session(sizes):
    """Opens a session over a transformer's eager components, of a stream that may be changed."""

    def opened(transformer: CausalWan, spec) -> CausalVideo:
        made = sizes.config.transformer_part.components(transformer).items()
        engines = {name: EagerEngine(component) for name, component in made}
        engines["vae_decode_first"] = NoDecoder(spec, 4 * spec.block - 3)
        engines["vae_decode"] = NoDecoder(spec, 4 * spec.block)
        return CausalVideo(Resources(spec, engines, torch.device("cpu")))

    return opened


@pytest.fixture(scope="session")
def shelf_plan() -> Plan:
    return Plan(blocks=5, clips=2, starts=4, every=4, keep=4, farthest=12)


@pytest.fixture(scope="session")
def vae_folder(sizes, tmp_path_factory) -> Path:
    """A VAE after two steps."""
    folder = tmp_path_factory.mktemp("vae")
    options = Options(folder, 2, steps=2, log_steps=1)
    run_vae(options, sizes, VaePlan(batch=1, latents=2), batches=1)
    return folder


@pytest.fixture(scope="session")
def encoder(sizes, vae_folder) -> Encoder:
    return Encoder(sizes, *load_vae(vae_folder, sizes, "cpu"), "cpu")


@pytest.fixture(scope="session")
def trained_folder(sizes, tmp_path_factory) -> Path:
    """A transformer that draws something, as a stage on latents would leave it."""
    torch.manual_seed(2)
    modules = trainable(sizes)
    torch.nn.init.normal_(modules["transformer"].proj_out.weight, std=0.05)
    folder = tmp_path_factory.mktemp("trained")
    training = Training(modules, Ema(modules), optimizer_for(modules))
    save(folder / "checkpoint", training, {"part": "few", "step": 0})
    return folder
