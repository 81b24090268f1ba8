"""Engines whose Linears are in 8 bits, beside arithmetic that rounds, on a Hopper GPU."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch
import transformer
from gpu_engines import eager, error, loaded, played
from modelopt_here import needs_modelopt
from quantized import Quantized
from safetensors import safe_open
from safetensors.torch import save_file
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.backends.aoti.backend import backend
from vidc.compiler.build.build import whole
from vidc.compiler.build.calibrate_command import calibrate
from vidc.compiler.build.calibration_prompts import default_prompts
from vidc.compiler.build.sources import Sources
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.runtime import load
from vidc.runtime.engines import Engine
from vidc.runtime.manifest import read_manifest

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=256")
LAYERS, STEPS = 2, 4


@pytest.fixture(scope="module")
def model():
    return transformer.model(*SMALL)


@pytest.fixture(scope="module")
def engine(target, model, attention_cubin, tmp_path_factory):
    """Compiles a component in 8 bits; once each."""
    kernels = {"flash_attention": attention_cubin("bfloat16", 64).parent}
    made: dict[tuple[str, str], Engine] = {}

    def engine(name: str, quantized: Quantized, precision: str, recipe: str) -> Engine:
        if (name, recipe) in made:
            return made[name, recipe]
        folder = tmp_path_factory.mktemp(f"{name}-{recipe}")
        exported = quantized.exported(name, "bf16", folder, onnx=False)
        output = folder / "output"
        built = backend.compile(exported, target, kernels, output)
        assert built.notes == ()
        save_file(quantized.state("bf16"), output / "transformer.safetensors")
        made[name, recipe], _ = loaded(built, precision, output)
        return made[name, recipe]

    return engine


@pytest.mark.parametrize(
    ("precision", "recipe"),
    [("fp8", "fp8-linear"), ("fp8", "fp8-dynamic"), ("int8", "int8-weight-only")],
)
@pytest.mark.parametrize("name", transformer.COMPONENTS)
def test_engines_round_as_their_recipe_says(engine, model, name, precision, recipe):
    quantized = Quantized(model, load_recipe(recipe))
    plain = played(eager(model.component(name, "fp32")), 216)
    rounded = played(eager(quantized.imitated(name)), 216)
    found = played(engine(name, quantized, precision, recipe), 216)
    for tensor, expected in rounded.items():
        # bf16 makes some values round to their neighbor in FP8; a wrong scale costs far more.
        allowed = 2e-2 + 0.5 * error(expected, plain[tensor])
        assert error(found[tensor], expected) <= allowed, tensor
        assert allowed < 0.1, tensor


@pytest.fixture(scope="module")
def bundle_folder(library, hopper, tmp_path_factory) -> Path:
    try:
        version("flash-attn-4")
    except PackageNotFoundError:
        pytest.skip("the extra cuda is not installed")
    folder = tmp_path_factory.mktemp("fp8-bundle")
    sources, cache = Sources({}, seed=1), folder / "cache"
    graphs = resolve("tiny", assignments=SMALL, environ={}, engines=False)
    prompts = default_prompts(program_spec(graphs.model), 2, False)
    ranges = folder / "calibration"
    calibrate(graphs, sources, prompts, 0, ranges, cache, LineProgress())
    eight = (*SMALL, "precision.transformer=fp8")
    settings = resolve("tiny", precision="bf16", assignments=eight, environ={})
    sources = replace(sources, calibration=ranges)
    # Building validates: every component and a rollout with a switch, against eager.
    return whole(settings, sources).run(folder / "bundle", cache, LineProgress()).output


@needs_modelopt
def test_a_bundle_in_fp8_is_validated_and_says_what_it_is(bundle_folder):
    document = read_manifest(bundle_folder)
    assert document.validation.passed
    assert document.config["quantization"]["recipe"] == "fp8-linear"
    assert {e.precision for n, e in document.engines.items() if not n.startswith("vae")} == {"fp8"}
    with safe_open(bundle_folder / "weights/transformer.safetensors", "pt") as weights:
        kinds = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert {"F8_E4M3", "F32", "BF16"} == kinds


@needs_modelopt
def test_a_block_in_fp8_quantizes_in_gelu(bundle_folder):
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
    # A clean pass ends in its last layer's keys and values.
    passes = LAYERS * STEPS + LAYERS - 1
    for kernel in ("gelu_quantize_kernel", "qk_norm_rope_ring_write_kernel"):
        assert sum(n for name, n in calls.items() if kernel in name) == passes
