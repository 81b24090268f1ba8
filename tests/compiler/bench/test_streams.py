"""Baselines of a bundle: PyTorch's own components on its weights, eager and compiled."""

from dataclasses import replace

import pytest
import torch
from random_transformer import random_weights
from safetensors.torch import save_file

from vidc.compiler.bench import streams
from vidc.compiler.bench.streams import BASELINES, of_baselines
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.compiler.validate.play import Inputs
from vidc.compiler.validate.reference import eager_engines, player
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import Weights, read_manifest

CPU = torch.device("cpu")
BLOCKS, SWITCH = 4, 2
SIZES = ("model.dim=48", "model.ffn_dim=96", "model.heads=2", "model.layers=2",
         "stream.height=32", "stream.width=48", "stream.window=6", "stream.sink=3",
         "stream.block=3")  # fmt: skip


@pytest.fixture
def bundle(make_bundle):
    """A bundle's folder and manifest, with weights that PyTorch can run."""
    settings = resolve("tiny", gpu="cpu", environ={}, assignments=SIZES)
    config, folder = settings.model, make_bundle()
    weights = {
        "transformer": random_weights(config.transformer, 7),
        "vae": random_state_dict(config.vae, 7, torch.float32),
    }
    paths = {group: f"weights/{group}.safetensors" for group in weights}
    for group, tensors in weights.items():
        save_file(tensors, folder / paths[group])
    manifest = read_manifest(folder)
    manifest = replace(
        manifest,
        config=settings.to_json(),
        spec=program_spec(config),
        weights={group: Weights(path, {}) for group, path in paths.items()},
        files=manifest.files | {path: file_entry(folder / path) for path in paths.values()},
    )
    return folder, manifest, config


def inputs(spec) -> Inputs:
    generator = torch.Generator().manual_seed(3)
    prompts = torch.randn(2, spec.batch, *spec.text, generator=generator)
    shape = (BLOCKS, len(spec.sigmas), spec.batch, spec.block, *spec.latent)
    return Inputs(prompts, torch.randn(shape, generator=generator), {})


def played(stream, given):
    stream.prompt(given.prompts[0])
    latents = []
    for block, noise in enumerate(given.noise):
        if block == SWITCH:
            stream.switch_prompt(given.prompts[1])
        latents.append(stream.generate(noise))
        frames = stream.decode(latents[-1])
    return latents, frames


def test_eager_baseline_reproduces_golden_data(bundle):
    folder, manifest, config = bundle
    weights = {group: folder / each.path for group, each in manifest.weights.items()}
    engines = eager_engines(config, weights, dict.fromkeys(weights, "fp32"), CPU)
    given = inputs(manifest.spec)
    scenario = Scenario(BLOCKS, SWITCH, rollout=True)
    expected = player(config, engines, CPU).rollout(scenario, given, keep=(BLOCKS - 1,))
    baseline = of_baselines(("eager",), folder, manifest, CPU, 0)["eager"]
    latents, frames = played(baseline.open(), given)
    assert all(map(torch.equal, latents, expected.latents))
    assert torch.equal(frames, expected.frames[BLOCKS - 1][0])
    assert frames.float().std() > 5


def test_compile_runs_each_component_compiled(bundle, monkeypatch):
    """Each that the stream calls, for its one shape, on the weights that eager runs on."""
    folder, manifest, _ = bundle
    compiled = []

    def backend(graph, arguments):
        compiled.append({node.target for node in graph.graph.nodes})
        return graph.forward

    monkeypatch.setitem(streams.BASELINES, "compile", backend)
    torch.compiler.reset()
    given = inputs(manifest.spec)
    baselines = of_baselines(("eager", "compile"), folder, manifest, CPU, 0)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        expected = played(baselines["eager"].open(), given)
        assert not compiled
        latents, frames = played(baselines["compile"].open(), given)
        graphs = len(compiled)
        again = played(baselines["compile"].open(), given)
    torch.compiler.reset()
    for one, other in zip(latents, expected[0], strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-5
    assert (frames.int() - expected[1].int()).abs().max() <= 1
    attending = [graph for graph in compiled if torch.ops.vidc.ring_attention.default in graph]
    # denoise, kv_update and the recaching of the whole window, each one graph.
    assert len(attending) == 3
    assert any(torch.conv3d in graph for graph in compiled)
    # What was compiled once serves every stream.
    assert len(compiled) == graphs
    assert all(map(torch.equal, latents, again[0]))


def test_streams_draw_noise_from_the_seed(bundle):
    folder, manifest, _ = bundle
    latents = []
    for seed in (1, 1, 2):
        stream = of_baselines(("eager",), folder, manifest, CPU, seed)["eager"].open()
        stream.prompt(inputs(manifest.spec).prompts[0])
        latents.append(stream.generate())
    assert torch.equal(latents[0], latents[1])
    assert not torch.equal(latents[0], latents[2])


def test_no_baseline_needs_no_weights(bundle, tmp_path):
    assert of_baselines((), tmp_path / "nowhere", bundle[1], CPU, 0) == {}


def test_backends_are_known_to_torch():
    assert BASELINES["eager"] is None
    assert BASELINES["compile"] in torch.compiler.list_backends()
