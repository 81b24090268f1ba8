"""Small bundles of each family of worlds, with models of code that others wrote."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diamond_models
import gamengen_models
import numpy as np
import oasis_models
import torch

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.calibrated_tensors import convolution_sizes

DIAMOND = """
description = "The smallest world with both networks"
extends = "world-tiny"
[denoiser]
channels = [32, 32]
cond = 32
actions = 5
[upsampler]
cond = 16
factor = 3
[frames]
height = 10
width = 14
"""
GAMENGEN = """
description = "The smallest world in latents"
extends = "latent-world-tiny"
[vae]
channels = [32, 32, 32, 32]
[sampler]
steps = 2
[frames]
height = 56
width = 80
[validate]
blocks = 4
switch_after = 2
"""
OASIS = """
description = "The smallest world with rings"
extends = "oasis-tiny"
[model]
layers = 2
actions = 5
analog = [3]
[vae]
decoder_layers = 1
[stream]
height = 48
width = 64
window = 4
[sampler]
steps = 2
"""


@dataclass(frozen=True)
class WorldCase:
    """A family of worlds, for tests of all of them.

    Attributes:
        preset: text of the preset's file.
        components: names of the engines.
        make: from the preset's model to a pair of it and the oracle, with the same weights.
        save: writes a pair's weights as a download; returns the flags that name them.
        actions: draws so many actions for a model.
        write_start: writes files of past frames and their actions into a folder.
        video: height and width of a frame.
        metrics: that a benchmark measures, among others.
        refused_action: a row of actions that this world refuses, and another does not.
        weights: file of the quantized network's weights.
        narrow: from a model and the names of its weights to those that INT8 stores in 8 bits.
    """

    preset: str
    components: tuple[str, ...]
    make: Callable[[Any], Any]
    save: Callable[[Any, Path], tuple[str, ...]]
    actions: Callable[[Any, int], Any]
    write_start: Callable[[Any, Path], None]
    video: tuple[int, int]
    metrics: frozenset[str]
    refused_action: str
    weights: str
    narrow: Callable[[Any, set[str]], set[str]]


@dataclass(frozen=True)
class BuiltWorld:
    """A case, its preset's file, the pair of models, the flags of a build and its bundle."""

    case: WorldCase
    preset: Path
    made: Any
    flags: tuple[str, ...]
    bundle: Path

    @property
    def model(self):
        return self.made.model

    @property
    def source(self) -> tuple[str, ...]:
        """Arguments of ``vidc build``."""
        return (str(self.preset), "--gpu", "cpu", *self.flags)


def build(case: WorldCase, folder: Path, cache: Path) -> BuiltWorld:
    """Writes preset and checkpoints into a folder, and builds a bundle."""
    preset = folder / "small.toml"
    preset.write_text(case.preset)
    made = case.make(load_preset(str(preset)).model)
    flags = case.save(made, folder)
    checkpoint, parts = Path(flags[1]), {}
    for flag, file in zip(flags[2::2], flags[3::2], strict=True):
        parts[flag.removeprefix("--")] = Path(file)
    settings = resolve(str(preset), gpu="cpu", environ={})
    _, sources = SourceOptions(checkpoint, parts).resolve(settings.model)
    whole(settings, sources).run(folder / "bundle", cache, LineProgress())
    return BuiltWorld(case, preset, made, flags, folder / "bundle")


def _diamond(model):
    return diamond_models.pair(**{name: getattr(model, name).to_json() for name in model.tables})


def _save_diamond(made, folder):
    return ("--checkpoint", str(made.save(folder)))


def _diamond_start(model, folder):
    """Writes a state as DIAMOND's `spawn` folders hold one; the upsampler's frames are more."""
    low, full, actions = diamond_models.start_of(model)
    for name, frames in (("low_res", low), ("full_res", full.repeat(4, 1, 1, 1))):
        np.save(folder / f"{name}.npy", ((frames + 1) * 127.5).round().to(torch.uint8).numpy())
    np.save(folder / "act.npy", actions.to(torch.int8).numpy())


def _diamond_narrow(model, names):
    inside = {n for n in convolution_sizes(model) if "conv_in" not in n and "conv_out" not in n}
    return inside & names


def _save_gamengen(made, folder):
    return ("--checkpoint", str(made.save(folder / "download")))


def _gamengen_actions(model, count):
    return torch.eye(model.unet.actions)[gamengen_models.actions_of(model, count)]


def _gamengen_start(model, folder):
    size = (3, 3, model.frames.height, model.frames.width)
    frames = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    np.save(folder / "low_res.npy", frames)
    np.save(folder / "act.npy", np.array([1, 0, 4]))


def _gamengen_narrow(_, names):
    ends = (".conv1", ".conv2", "samplers.0.conv")
    return {name for name in names if name.endswith(ends) or ".ff.net." in name}


def _save_oasis(made, folder):
    oasis, vae = made.save(folder)
    return ("--checkpoint", str(oasis), "--vae", str(vae))


def _oasis_start(model, folder):
    frames = oasis_models.images_of(model, 2).permute(0, 3, 1, 2)
    np.save(folder / "low_res.npy", frames.numpy())
    np.save(folder / "act.npy", oasis_models.actions_of(model, 2).numpy())


def _oasis_narrow(model, names):
    layers = [f"{at}_{layer}" for at in "st" for layer in ("attn.to_qkv", "attn.to_out")]
    layers += [f"{at}_mlp.{layer}" for at in "st" for layer in ("fc1", "fc2")]
    found = {f"blocks.{i}.{n}" for i in range(model.transformer.layers) for n in layers}
    return found & names


CASES = {
    "world": WorldCase(
        DIAMOND, ("denoise", "upsample"), _diamond, _save_diamond, diamond_models.actions_of,
        _diamond_start, (30, 42), frozenset({"block_ms", "pixels_ms", "stream_ms"}),
        "0,0,2,0,0", "diamond", _diamond_narrow,
    ),
    "latent_world": WorldCase(
        GAMENGEN, ("vae_encode", "condition_frame", "denoise", "vae_decode"), gamengen_models.Pair,
        _save_gamengen, _gamengen_actions, _gamengen_start, (56, 80),
        frozenset({"block_ms", "vae_ms", "first_frames_ms", "stream_ms"}), "1,1,0,0,0", "unet",
        _gamengen_narrow,
    ),
    "oasis": WorldCase(
        OASIS, ("vae_encode", "condition_frame", "denoise", "kv_update", "vae_decode"),
        lambda model: oasis_models.pair(**model.to_json()), _save_oasis, oasis_models.actions_of,
        _oasis_start, (48, 64), frozenset({"block_ms", "vae_ms", "stream_ms"}), "1,0,0,1.5,0",
        "oasis", _oasis_narrow,
    ),
}  # fmt: skip
"""A case for each family of worlds."""
