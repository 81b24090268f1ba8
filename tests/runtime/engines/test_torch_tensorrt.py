"""Plans of backend ``torch_tensorrt`` in the loader of plans, by stand-ins for package and product.

What the stand-in makes of a program is the ONNX graph of that very program, so that a stream of
such plans is PyTorch's where the program, its ring and the names of its tensors are right.
"""

import sys
from dataclasses import replace

import fake_tensorrt
import fake_torch_tensorrt
import pytest
import torch

from vidc.compiler.backends.torch_tensorrt import converters
from vidc.compiler.backends.torch_tensorrt.backend import backend
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.compiler.validate.golden import make_inputs
from vidc.compiler.validate.reference import eager_engines, player
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.program import export_program, save_program
from vidc.plugins.errors import GateError
from vidc.runtime import manifest
from vidc.runtime.engines.tensorrt import load
from vidc.runtime.files import Files
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")
VERSION = "9.8.7"
SMALL = (
    "model.layers=1",
    "stream.height=16",
    "stream.width=32",
    "stream.window=9",
    "vae.base_dim=4",
    "vae.res_blocks=1",
    "sampler.steps=[1000, 500]",
)


@pytest.fixture(scope="module", autouse=True)
def stand_ins():
    with pytest.MonkeyPatch.context() as patch:
        for name, module in fake_torch_tensorrt.modules("tensorrt_rtx", {}).items():
            patch.setitem(sys.modules, name, module)
        product = fake_tensorrt.module("tensorrt_rtx", VERSION)
        patch.setitem(sys.modules, "tensorrt_rtx", product)
        converters.register.cache_clear()
        yield
        converters.register.cache_clear()


def compiled(config, name, folder):
    """The entry of an engine that is built into a folder."""
    group = config.components[name]
    component = config.parts[group].components(config.parts[group].network("fp32"))[name]
    (folder / name).mkdir()
    exported = ExportedComponent(name, folder / name, component.signature, component.aligned)
    save_program(export_program(component), exported.program)
    engine = backend.compile(exported, targets()["rtx4090"], {}, folder)
    return manifest.Engine(
        "torch_tensorrt", engine.loader, VERSION, "fp32", engine.files, engine.signature,
        dict(engine.options), engine.requires,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sink", "by_pytorch"), [(3, ("vae_decode_first",)), (2, ("text_kv", "vae_"))]
)
def test_stream_matches_pytorch(weights, tmp_path, sink, by_pytorch):
    """With a sink of two frames blocks straddle the wrap, which matters to the ring alone."""
    assignments = (*SMALL, f"stream.sink={sink}")
    config = resolve("tiny", gpu="cpu", assignments=assignments, environ={}).model
    engines = eager_engines(config, weights, dict.fromkeys(weights, "fp32"), CPU)
    stream = program_spec(config)
    scenario = Scenario(blocks=6, switch_after=4, rollout=True)
    inputs = make_inputs(scenario, stream)
    with torch.no_grad():
        expected = player(config, engines, CPU).rollout(scenario, inputs)
    shared = Weights(weights, CPU)
    for name in engines:
        if name in stream.components and not name.startswith(by_pytorch):
            engines[name] = load(Files(tmp_path), compiled(config, name, tmp_path), shared, CPU)
    ring = [s for s in engines["denoise"].signature.states if s.name.startswith("ring.")]
    assert {s.in_place for s in ring} == {sink == 3}
    with torch.no_grad():
        found = player(config, engines, CPU).rollout(scenario, inputs)
    for got, wanted in zip(found.latents, expected.latents, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    for block, frames in expected.frames.items():
        assert (found.frames[block].int() - frames.int()).abs().max() <= 1


@pytest.fixture(scope="module")
def text_kv(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text_kv")
    return folder, compiled(config, "text_kv", folder)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (("output0", "output1"), "two of them have one name"),
        (("output0", "cross.q.0.out"), "cross.q.0.out is"),
        (("values_0", "transformer.absent"), "weight transformer.absent is not in the bundle"),
    ],
)
def test_names_that_are_not_the_manifest_s_are_refused(weights, text_kv, first, says):
    folder, entry = text_kv
    names = entry.options["names"]
    tensor, other = first
    wrong = names | {tensor: names.get(other, other)}
    changed = replace(entry, options=entry.options | {"names": wrong})
    with pytest.raises(GateError, match=says) as caught:
        load(Files(folder), changed, Weights(weights, CPU), CPU)
    assert caught.value.code == "VIDC-ENGINE-SIGNATURE"
