"""Engines that call fused operators, beside those that do not and beside eager, on a Hopper GPU."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch
import transformer
from gpu_engines import eager, error, loaded, played
from safetensors.torch import save_file
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.backends import CompiledEngine
from vidc.compiler.backends.aoti.backend import backend
from vidc.compiler.build.build import whole
from vidc.compiler.build.sources import Sources
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.config.resolve import resolve
from vidc.exporters.export import export_component
from vidc.plugins import engine_operators
from vidc.plugins.errors import UnavailableError
from vidc.runtime import load
from vidc.runtime.engines import Engine
from vidc.runtime.manifest import read_manifest
from vidc.runtime.weights import Weights

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=256")
LAYERS, STEPS = 2, 4
FUSED = ("qk_norm_rope_ring_write",)


@dataclass(frozen=True)
class Compiled:
    """One component, compiled for the GPU and loaded."""

    built: CompiledEngine
    loaded: Engine
    weights: Weights


@pytest.fixture(scope="module")
def model():
    return transformer.model(*SMALL)


@pytest.fixture(scope="module")
def compiled(target, model, attention_cubin, tmp_path_factory):
    """Compiles a component, with fused operators or without; once each."""
    kernels = {"flash_attention": attention_cubin("bfloat16", 64).parent}
    made: dict[tuple[str, bool], Compiled] = {}

    def compiled(name: str, fused: bool) -> Compiled:
        if (name, fused) in made:
            return made[name, fused]
        folder = tmp_path_factory.mktemp(f"{name}-{fused}")
        exported = export_component(model.config.parts["transformer"], "bf16", name, folder)
        output = folder / "output"
        with pytest.MonkeyPatch.context() as patch:
            if not fused:
                absent = UnavailableError("VIDC-KERNEL-LIBRARY", "no library", "none")
                patch.setattr(engine_operators, "kernel_error", lambda *_: absent)
            built = backend.compile(exported, target, kernels, output)
        tensors = {key: value.bfloat16() for key, value in model.weights.items()}
        save_file(tensors, output / "transformer.safetensors")
        made[name, fused] = Compiled(built, *loaded(built, "bf16", output))
        return made[name, fused]

    return compiled


@pytest.mark.parametrize("name", transformer.COMPONENTS)
@pytest.mark.parametrize("position", [0, 216, 1_000_008])
def test_fused_engines_are_as_near_eager_as_others(compiled, model, name, position):
    expected = played(eager(model.component(name, "fp32")), position)
    fused = played(compiled(name, True).loaded, position)
    other = played(compiled(name, False).loaded, position)
    rounded = played(eager(model.component(name, "bf16")), position)
    for tensor, wanted in expected.items():
        # What bf16 costs, by eager and by the compiler's kernels; a slot that is off costs 1.
        allowed = 1.25 * max(error(other[tensor], wanted), error(rounded[tensor], wanted))
        assert error(fused[tensor], wanted) <= allowed, tensor
        assert allowed < 2e-2, tensor


@pytest.mark.parametrize("name", transformer.COMPONENTS)
def test_fused_engines_say_what_they_call(compiled, name):
    fused, other = compiled(name, True).built, compiled(name, False).built
    assert fused.requires.operators == FUSED
    assert fused.notes == ()
    assert other.requires.operators == ()
    assert len(other.notes) == 1


def test_fused_engines_are_as_given_by_equal_inputs(compiled):
    first, again = (played(compiled("denoise", True).loaded, 216) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_fused_engines_pack_weights_once(compiled):
    weights = compiled("denoise", True).weights
    layer = "transformer.blocks.0.attn1"
    parts = [f"{layer}.to_{part}.weight" for part in "qkv"]
    whole = weights.packed(f"{layer}.to_qkv.weight", parts)
    assert {weights[part].untyped_storage().data_ptr() for part in parts} == {
        whole.untyped_storage().data_ptr()
    }


@pytest.fixture(scope="module")
def bundle_folder(library, hopper, tmp_path_factory) -> Path:
    try:
        version("flash-attn-4")
    except PackageNotFoundError:
        pytest.skip("the extra cuda is not installed")
    folder = tmp_path_factory.mktemp("fused-bundle")
    settings = resolve("tiny", precision="bf16", assignments=SMALL, environ={})
    # Building validates: every component and a rollout with a switch, against eager.
    build = whole(settings, Sources({}, seed=1))
    return build.run(folder / "bundle", folder / "cache", LineProgress()).output


def test_a_fused_bundle_says_which_engines_need_the_library(bundle_folder):
    document = read_manifest(bundle_folder)
    assert document.validation.passed
    needed = {name: engine.requires.operators for name, engine in document.engines.items()}
    for name, operators in needed.items():
        if name.startswith(("denoise", "kv_update", "recache")):
            assert operators == FUSED
    # Winograd's convolutions in time need an even number of frames.
    of_vae = {operators for name, operators in needed.items() if name.startswith("vae")}
    assert of_vae == {(), ("norm_silu_winograd",)}


def test_a_fused_bundle_s_block_runs_these_kernels(bundle_folder):
    bundle = load(bundle_folder)
    session = bundle.session(seed=3)
    session.prompt(torch.randn(bundle.spec.batch, *bundle.spec.text))
    for _ in range(6):
        session.generate()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        session.generate()
        torch.cuda.synchronize()
    calls = {event.key: event.count for event in seen.key_averages()}

    def count(text: str) -> int:
        return sum(n for name, n in calls.items() if text in name)

    # A clean pass ends in its last layer's keys and values.
    attentions = LAYERS * STEPS + LAYERS - 1
    assert count("qk_norm_rope_ring_write_kernel") == attentions
    # GELU is in the epilogue of the matmul before it.
    assert count("gelu_quantize_kernel") == 0
    assert count("flash") >= attentions
    # The compiler's own ring write is left in that last layer alone, one kernel for each ring.
    assert count("index_put") <= 2


def test_a_fused_bundle_repeats_itself(bundle_folder):
    bundle = load(bundle_folder)
    rollouts = []
    for _ in range(2):
        session = bundle.session(seed=3)
        generator = torch.Generator().manual_seed(1)
        session.prompt(torch.randn(bundle.spec.batch, *bundle.spec.text, generator=generator))
        rollouts.append(torch.stack([session.generate() for _ in range(6)]))
    assert torch.isfinite(rollouts[0]).all()
    assert torch.equal(*rollouts)
