"""Networks with vidc's plugins, built by TensorRT-RTX without a GPU; none of them runs here."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from vidc.compiler.backends import CompileOptions
from vidc.compiler.backends.tensorrt.backend import backend
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.compiler.inspect.plan import inspect_plan
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.modules import quantized_components
from vidc.compiler.quantize.support import TENSORRT
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.export import export_component
from vidc.plugins.signature import state_output

pytest.importorskip("tensorrt_rtx")

WRITE, WRITE_8BIT = "qk_norm_rope_ring_write", "qk_norm_rope_ring_write_static"
ATTEND, ATTEND_8BIT = "ring_attention_16bit", "ring_attention_8bit"
GELU = "gelu_quantize"
TARGET = targets()["rtx4090"]
TURING_TO_BLACKWELL = ("7.5", "8.6", "8.9", "12.0")
WITH_BF16 = TURING_TO_BLACKWELL[1:]
WITH_FP8 = TURING_TO_BLACKWELL[2:]
LAYERS = 2
SIZES = (
    f"model.layers={LAYERS}", "model.dim=128", "model.heads=2", "model.ffn_dim=64",
    "stream.height=16", "stream.width=32",
)  # fmt: skip
STRADDLING, ALIGNED = 8, 24
"""Windows in latent frames, of 2 slots each; blocks of the first one straddle its wrap."""


@dataclass(frozen=True)
class Case:
    """A plan to build, and the plugins of each of its layers."""

    component: str
    precision: str
    recipe: str | None
    window: int
    capabilities: tuple[str, ...]
    setting: str
    plugins: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.component}-{self.recipe or self.precision}-{self.window}-{self.setting}"


CASES = (
    Case("denoise", "fp16", None, STRADDLING, TURING_TO_BLACKWELL, "auto", (WRITE, ATTEND)),
    Case("kv_update", "fp16", "kv-int8", ALIGNED, TURING_TO_BLACKWELL, "auto",
         (WRITE_8BIT, ATTEND)),
    Case("denoise", "bf16", "fp8", ALIGNED, WITH_FP8, "all", (WRITE_8BIT, ATTEND_8BIT, GELU)),
)  # fmt: skip
MORE = (
    Case("recache_6", "bf16", None, STRADDLING, WITH_BF16, "auto", (WRITE, ATTEND)),
    Case("denoise", "fp16", "int8-attention", ALIGNED, TURING_TO_BLACKWELL, "auto",
         (WRITE_8BIT, ATTEND_8BIT)),
    Case("kv_update", "bf16", "fp8-int8-attention", STRADDLING, WITH_FP8, "auto",
         (WRITE_8BIT, ATTEND_8BIT)),
    Case("denoise", "fp16", "kv-int8", STRADDLING, TURING_TO_BLACKWELL, "auto",
         (WRITE_8BIT, ATTEND)),
    Case("denoise", "bf16", "kv-fp8", STRADDLING, WITH_FP8, "auto", (WRITE_8BIT, ATTEND)),
    Case("recache_6", "bf16", "kv-fp8", ALIGNED, WITH_FP8, "auto", (WRITE_8BIT, ATTEND)),
    Case("kv_update", "fp16", None, ALIGNED, TURING_TO_BLACKWELL, "all", (WRITE, ATTEND, GELU)),
)  # fmt: skip


def exported(case: Case, folder: Path) -> ExportedComponent:
    sizes = (*SIZES, f"stream.window={case.window}")
    model = resolve("tiny", assignments=sizes, environ={}, engines=False).model
    part, quantize = model.parts["transformer"], None
    if case.recipe is not None:
        formats = supported_formats(load_recipe(case.recipe), model, TENSORRT)
        quantize = partial(quantized_components, part, formats)
    return export_component(part, case.precision, case.component, folder, quantize, operators=None)


def compiled(case: Case, folder: Path):
    """The engine of a case, and its plan."""
    component = exported(case, folder)
    output = folder / "engine"
    output.mkdir()
    options = CompileOptions(plugins=case.setting, capabilities=case.capabilities)
    engine = backend.compile(component, TARGET, {}, output, options)
    return engine, output / engine.files[0]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.deep) for c in MORE)], ids=str
)
@pytest.mark.usefixtures("plugins")
def test_plan_has_its_plugins_and_copies_no_ring(case, tmp_path):
    engine, file = compiled(case, tmp_path)
    assert engine.options["plugins"] == sorted(case.plugins)
    found, plan = inspect_plan(file), file.read_bytes()
    assert set(found.plan.architectures) == {
        f"sm{capability.replace('.', '')}" for capability in case.capabilities
    }
    assert all(plugin.encode() in plan for plugin in case.plugins)
    # The last layer of a clean pass attends to nothing.
    attending = LAYERS if case.component == "denoise" else LAYERS - 1
    calls = list(found.network.plugins.values())
    for plugin in case.plugins:
        expected = LAYERS if plugin in (WRITE, WRITE_8BIT) else attending
        assert calls.count(plugin) == expected or plugin == GELU
    rings = [state for state in engine.signature.states if state.name.startswith("ring.")]
    assert len(rings) == 2 * LAYERS
    assert all(ring.in_place for ring in rings)
    for ring in rings:
        assert found.engine.updates_in_place(ring.name, state_output(ring.name)), ring.name
    if case.plugins[0] == WRITE_8BIT:
        assert {ring.torch_dtype.itemsize for ring in rings} == {1}
        for layer, side in product(range(LAYERS), ("keys", "values")):
            assert f"blocks.{layer}.attn1.ring.{side}.scale".encode() in plan
