"""Stable Video Diffusion in fp16 as ONNX Runtime runs it on a T4, here on any GPU."""

import pytest
import tiny_svd
import torch
from safetensors.torch import save_file

from vidc.compiler.backends.onnxruntime.backend import OnnxRuntimeBackend
from vidc.compiler.config.targets import targets
from vidc.exporters.export import export_component
from vidc.plugins.signature import Role
from vidc.runtime import manifest
from vidc.runtime.engines.onnxruntime import CUDA, load
from vidc.runtime.files import Files
from vidc.runtime.ort import onnxruntime
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights


@pytest.fixture
def with_cuda(gpu):
    if CUDA not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA")
    return gpu


def bundled(name, part, folder, device):
    """The engine of a component, its weights in fp16."""
    component = export_component(part, "fp16", name, folder, operators=None)
    (folder / "output").mkdir()
    made = OnnxRuntimeBackend().compile(component, targets()["t4"], {}, folder / "output")
    entry = manifest.Engine(
        "onnxruntime", made.loader, made.version, "fp16", made.files, made.signature, made.options,
        made.requires,
    )  # fmt: skip
    types = part.network("fp16").state_dict()
    stored = {key: value.to(types[key].dtype) for key, value in tiny_svd.weights(part).items()}
    save_file(stored, folder / "weights.safetensors")
    weights = Weights({part.group: folder / "weights.safetensors"}, device)
    return load(Files(folder / "output"), entry, weights, device)


def compared(name, folder, device):
    """Relative L2 of the engine's output, beside PyTorch in float32 on a CPU."""
    svd = tiny_svd.model("model.layers=1")
    part = svd.parts[svd.components[name]]
    engine = bundled(name, part, folder, device)
    drawn = torch.Generator().manual_seed(0)
    high = part.components(tiny_svd.network(part))[name]
    given = {s.name: torch.randn(s.shape, generator=drawn) for s in high.signature.arguments}
    with torch.no_grad():
        (expected,) = high.module(*given.values())
    states, buffers = States([engine.signature], device), Buffers(engine.signature, device)
    for spec in engine.signature.arguments:
        if spec.role is Role.STATE:
            states[spec.name].copy_(given[spec.name])
        else:
            buffers[spec.name].copy_(given[spec.name])
    engine.run(buffers, states)
    (output,) = engine.signature.outputs
    return tiny_svd.relative_l2(buffers[output.name].float().cpu(), expected)


@pytest.mark.parametrize("name", ["denoise", "vae_decode"])
def test_fp16_engine_computes_what_pytorch_does(name, tmp_path, with_cuda):
    assert compared(name, tmp_path, with_cuda) < 2e-2
