"""One small bundle, built once for every test of this folder."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import small_taehv
import torch
from bundle_8bit import build_8bit, untrained
from click.testing import CliRunner
from diffusers import AutoencoderKLWan
from random_transformer import random_weights
from tiny_umt5 import save_text_encoder, tiny_tokenizer, tiny_umt5
from wan_transformer import wan_transformer

from vidc.compiler.build import build as building
from vidc.compiler.build.build import whole
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import WORKERS
from vidc.compiler.cli import calibrate
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.resolve import Settings, resolve
from vidc.compiler.validate.golden import Golden
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict
from vidc.runtime import Bundle, load

PRESET = """
description = "The smallest stream that wraps inside a block and switches its prompt"
extends = "tiny"
[model]
dim = 48
ffn_dim = 96
heads = 2
[vae]
res_blocks = 1
[stream]
height = 32
width = 48
window = 8
[validate]
blocks = 8
switch_after = 5
"""


MIX = """
description = "a layer's attention, all second halves; inputs less their mean; another layer's ring"
[[linear]]
weights = "int8"
activations = "int8"
layers = ["blocks.0.attn1.**", "blocks.*.ffn.net.2"]
[[linear]]
weights = "int8"
activations = "int8"
layers = ["blocks.*.attn2.**", "blocks.*.ffn.net.0.proj"]
smooth = 0.8
center = true
[[attention]]
layers = ["blocks.1.attn1"]
keys = "int8"
values = "int8"
"""


@dataclass(frozen=True)
class Project:
    """A preset, a checkpoint, a cache, and the bundle that was built from them."""

    preset: Path
    pipeline: Path
    cache: Path
    bundle: Path

    def resolve(
        self, *assignments: str, parts: dict[str, Path] | None = None, **flags: str
    ) -> tuple[Settings, Sources]:
        """Settings and sources with ``--set``, checkpoints of parts and other flags."""
        settings = resolve(
            str(self.preset), assignments=assignments, environ={}, **({"gpu": "cpu"} | flags)
        )
        options = SourceOptions(self.pipeline, parts or {})
        model, sources = options.resolve(settings.model)
        return replace(settings, model=model), sources


def save_pipeline(folder: Path, settings: Settings) -> None:
    """A diffusers pipeline's folder, written by diffusers and transformers."""
    sizes, vae = settings.model.transformer, settings.model.vae
    transformer = wan_transformer(sizes)
    transformer.load_state_dict(random_weights(sizes, seed=1))
    transformer.save_pretrained(folder / "transformer")
    autoencoder = AutoencoderKLWan(base_dim=vae.base_dim, num_res_blocks=vae.res_blocks)
    autoencoder.load_state_dict(random_state_dict(vae, 1, torch.float32))
    autoencoder.save_pretrained(folder / "vae")
    save_text_encoder(folder, tiny_umt5(), tiny_tokenizer())


@pytest.fixture(scope="session", autouse=True)
def in_this_process() -> Iterator[None]:
    """Runs the stages of builds here: each worker would import torch, which takes seconds.

    The project's are run by workers.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "WORKERS", 0)
        yield


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("project")
    (root / "small.toml").write_text(PRESET)
    made = Project(root / "small.toml", root / "pipeline", root / "cache", root / "out" / "small")
    save_pipeline(made.pipeline, resolve(str(made.preset), gpu="cpu", environ={}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "WORKERS", WORKERS)
        whole(*made.resolve()).run(made.bundle, made.cache, LineProgress())
    return made


@pytest.fixture(scope="session")
def taehv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TAEHV's checkpoint, of ``small_taehv.SIZES``."""
    return small_taehv.save(tmp_path_factory.mktemp("taehv") / "taew2_1.safetensors")


@pytest.fixture(scope="session")
def bundle(project: Project) -> Bundle:
    return load(project.bundle)


@pytest.fixture(scope="session")
def golden(project: Project) -> Golden:
    return Golden.load(project.bundle)


@pytest.fixture(scope="session")
def calibrated(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration of the project's weights."""
    output = tmp_path_factory.mktemp("calibrated") / "calibration"
    arguments = [
        str(project.preset), "--gpu", "cpu", "--checkpoint", str(project.pipeline / "transformer"),
        "-n", "8", "-o", str(output),
    ]  # fmt: skip
    made = CliRunner().invoke(calibrate.command, arguments, env={"VIDC_CACHE": str(project.cache)})
    assert made.exit_code == 0, made.output
    return output


@pytest.fixture(scope="session")
def mixed(project: Project, calibrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with some layers in 8 bits, of which some have the mean taken off their inputs."""
    folder = tmp_path_factory.mktemp("mixed")
    recipe = folder / "mix.toml"
    recipe.write_text(MIX)
    return build_8bit(project, calibrated, folder / "bundle", precision="int8", recipe=str(recipe))


@pytest.fixture
def build(project: Project, vidc: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``vidc build`` on the project's weights."""
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))

    def run(*arguments: str) -> Any:
        weights = ("--checkpoint", str(project.pipeline))
        return vidc("build", str(project.preset), "--gpu", "cpu", *weights, *arguments)

    return run


@pytest.fixture
def weights_untrained() -> Iterator[None]:
    with untrained():
        yield
