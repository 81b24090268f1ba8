"""Clips on a GPU: all steps are one CUDA graph, and give what a CPU gives."""

import numpy as np
import pytest
import tiny_svd
import torch
from PIL import Image
from tiny_svd import relative_l2
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.config.program import program_spec
from vidc.compiler.validate.reference import part_engines
from vidc.runtime.graphs import Runners
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.clip import Clip

SAMPLERS = {
    "euler": (),
    "two passes": ("clip.low_memory=true",),
    "consistency": ("sampler.kind=consistency", "sampler.guidance=[1.0, 1.0]"),
    "DeepCache": ("sampler.cache_interval=3",),
}


@pytest.fixture(autouse=True)
def exact():
    """Without gradients, and with convolutions in float32, not TF32."""
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture(params=SAMPLERS.values(), ids=[*SAMPLERS])
def svd(request):
    return tiny_svd.model(*request.param)


def on_gpu(svd, gpu, captured):
    """A session over PyTorch's components on the GPU."""
    engines = {}
    for part in svd.parts.values():
        engines |= part_engines(part, tiny_svd.network(part).to(gpu))
    return Clip(Resources(program_spec(svd), engines, gpu, Runners.on(gpu, captured)))


def picture(seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_a_captured_clip_is_that_of_a_cpu(svd, gpu):
    """Twice, so that nothing of the capture or of the clip before is left."""
    captured, direct = on_gpu(svd, gpu, captured=True), on_gpu(svd, gpu, captured=False)
    reference = tiny_svd.session(svd)
    for seed in (0, 1):
        found = captured.generate(picture(seed))
        assert torch.equal(found, direct.generate(picture(seed)))
        assert relative_l2(found.cpu(), reference.generate(picture(seed))) < 1e-3


def test_steps_with_progress_are_those_of_the_one_graph(svd, gpu):
    session, steps = on_gpu(svd, gpu, captured=True), []
    whole = session.generate(picture())
    session.reset()
    stepped = session.generate(picture(), progress=lambda step, _: steps.append(step))
    assert steps == list(range(1, svd.sampler.steps + 1))
    assert torch.equal(stepped, whole)


def test_a_clip_is_one_graph_launch(svd, gpu):
    session = on_gpu(svd, gpu, captured=True)
    session.generate(picture())
    torch.cuda.synchronize(gpu)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        session.generate()
        torch.cuda.synchronize(gpu)
    calls = {event.key: event.count for event in profiled.key_averages()}
    assert calls["cudaGraphLaunch"] == 1


def test_a_step_is_one_kernel_beside_its_network(svd, library):
    session = on_gpu(svd, library, captured=True)
    session.generate(picture())
    torch.cuda.synchronize(library)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        session.generate()
        torch.cuda.synchronize(library)
    events = profiled.key_averages()
    launches = sum(event.count for event in events if "sampler_step_kernel" in event.key)
    assert launches == svd.sampler.steps
