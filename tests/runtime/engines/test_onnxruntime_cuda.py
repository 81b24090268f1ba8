"""Graphs for a GPU: their weights given, their ring in place.

ONNX Runtime computes them on a CPU here, once as itself and once behind a stand-in for its CUDA.
"""

import weakref
from dataclasses import replace

import fake_cuda
import pytest
import torch

from vidc.compiler.backends.onnxruntime.backend import backend
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.targets import targets
from vidc.compiler.validate.golden import make_inputs
from vidc.compiler.validate.play import Player
from vidc.compiler.validate.reference import eager_engines, player
from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.errors import GateError, UnavailableError
from vidc.runtime import graphs, manifest
from vidc.runtime.engines import capturable
from vidc.runtime.engines import onnxruntime as engines
from vidc.runtime.engines.onnxruntime import load
from vidc.runtime.faults import EngineRunError
from vidc.runtime.files import Files
from vidc.runtime.graphs import DIRECT, Runner, Runners, WarmRunner
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import CausalVideo
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def built(config, exported, tmp_path_factory):
    """The backend's output for a stream's components: a folder each, and their entries."""
    found = {}
    for name in config.components:
        if name not in program_spec(config).components:
            continue
        folder = tmp_path_factory.mktemp(name)
        engine = backend.compile(exported(name), targets()["h200"], {}, folder)
        entry = manifest.Engine(
            "onnxruntime", engine.loader, engine.version, "fp32", engine.files, engine.signature,
            dict(engine.options), engine.requires,
        )  # fmt: skip
        found[name] = (folder, entry)
    return found


@pytest.fixture
def on_gpu(monkeypatch):
    """Puts a stand-in in the place of ONNX Runtime."""

    def put(**given):
        fake = fake_cuda.Module(**given)
        monkeypatch.setattr(engines, "onnxruntime", fake)
        monkeypatch.setattr(torch.cuda, "current_stream", fake_cuda.stream)
        monkeypatch.setattr(engines, "torch_memory", lambda device: {"gpu_external_alloc": "1"})
        return fake

    return put


def loaded(built, weights, device):
    shared = Weights(weights, CPU)
    return {
        name: load(Files(folder), entry, shared, device) for name, (folder, entry) in built.items()
    }


def require_pytorchs_stream(config, weights, found, runners):
    eager = eager_engines(config, weights, dict.fromkeys(weights, "fp32"), CPU)
    stream = program_spec(config)
    scenario = Scenario(blocks=6, switch_after=4, rollout=True)
    inputs = make_inputs(scenario, stream)
    with torch.no_grad():
        captured = Player(CausalVideo, Resources(stream, found, CPU, runners))
        got = captured.rollout(scenario, inputs)
        expected = player(config, eager, CPU).rollout(scenario, inputs)
    for ours, theirs in zip(got.latents, expected.latents, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for block, frames in expected.frames.items():
        assert (got.frames[block].int() - frames.int()).abs().max() <= 1


@pytest.fixture
def warm(monkeypatch):
    monkeypatch.setattr(graphs, "gpu_faults", lambda device: fake_cuda.nothing())
    monkeypatch.setattr(torch.cuda, "current_stream", fake_cuda.stream)
    return Runners.on(GPU, captured=False)


def test_stream_on_a_cpu_matches_pytorch(config, weights, built):
    found = loaded(built, weights, CPU)
    assert not any(engine.captured for engine in found.values())
    require_pytorchs_stream(config, weights, found, DIRECT)


def test_stream_of_captured_runs_matches_pytorch(config, weights, built, on_gpu, warm):
    fake = on_gpu()
    found = loaded(built, weights, GPU)
    captured = {name for name, engine in found.items() if engine.captured}
    assert captured == {name for name in found if not name.startswith("taehv")}
    require_pytorchs_stream(config, weights, found, warm)
    sessions = dict(zip(found, fake.sessions, strict=True))
    assert {s.cuda["use_tf32"] for s in fake.sessions} == {"0"}
    assert {s.cuda["cudnn_conv_algo_search"] for s in fake.sessions} == {"HEURISTIC"}
    assert not any(s.pattern for s in fake.sessions)
    assert {n for n, s in sessions.items() if "gpu_external_alloc" not in s.cuda} == captured
    # The ring stays where it is, so that one graph serves all blocks. A switch of the prompt is
    # captured when it first recomputes so many frames.
    assert {name: len(s.captured) for name, s in sessions.items()} == {
        name: int(name in captured and name != "recache_9") for name in sessions
    }
    assert sessions["denoise"].replays > 2 * 6


def test_each_of_two_buffers_has_a_graph(config, weights, built, on_gpu, warm):
    """The decoder's caches have two, were it captured."""
    fake = on_gpu()
    captured = {
        name: (folder, replace(entry, options={**entry.options, "cuda_graph": True}))
        for name, (folder, entry) in built.items()
    }
    found = loaded(captured, weights, GPU)
    require_pytorchs_stream(config, weights, found, warm)
    sessions = dict(zip(found, fake.sessions, strict=True))
    assert {name: len(s.captured) for name, s in sessions.items()} == {
        name: 2 if name.startswith("taehv") else int(name != "recache_9") for name in sessions
    }
    assert sessions["taehv_decode"].replays >= 5


def test_a_captured_graph_keeps_no_buffer_of_a_closed_session(built, weights, on_gpu):
    on_gpu()
    folder, entry = built["denoise"]
    engine = load(Files(folder), entry, Weights(weights, CPU), GPU)
    assert engine.captured
    buffers, states = Buffers(engine.signature, CPU), States([engine.signature], CPU)
    engine.run(buffers, states)
    tensors = [*buffers.inputs.values(), *buffers.outputs.values()]
    tensors += [states[spec.name] for spec in engine.signature.states]
    kept = [weakref.ref(tensor) for tensor in tensors]
    del buffers, states, tensors
    assert not any(each() is not None for each in kept)


def test_runs_a_graph_that_cannot_be_captured(config, weights, built, on_gpu, warm):
    fake = on_gpu(capturable=False)
    found = loaded(built, weights, GPU)
    assert not any(engine.captured for engine in found.values())
    require_pytorchs_stream(config, weights, found, warm)
    assert {s.cuda["enable_cuda_graph"] for s in fake.sessions} == {"0"}


def test_states_and_weights_are_where_the_backend_says(built):
    _, denoise = built["denoise"]
    rings = [s for s in denoise.signature.states if s.name.startswith("ring.")]
    assert rings
    assert all(s.in_place and s.axes == (0, 2, 1, 3) for s in rings)
    assert denoise.options["weights_given"]
    assert denoise.files == ("engines/onnxruntime/denoise.onnx",)
    assert not any(s.in_place for s in built["taehv_decode"][1].signature.states)


def refused(built, weights, code, device=CPU, **changes):
    folder, entry = built["text_kv"]
    with pytest.raises((GateError, UnavailableError)) as caught:
        load(Files(folder), replace(entry, **changes), Weights(weights, CPU), device)
    assert caught.value.code == code
    return caught.value


def test_an_onnxruntime_without_cuda_is_named_with_what_to_install(built, weights):
    error = refused(built, weights, "VIDC-ENV-ONNXRUNTIME", GPU)
    assert "engines/onnxruntime/text_kv.onnx runs on a GPU" in error.message
    assert "install onnxruntime-gpu" in error.hint


def test_a_gpu_is_not_silently_replaced_by_the_cpu(built, weights, on_gpu):
    on_gpu(loads=False)
    error = refused(built, weights, "VIDC-ENV-ONNXRUNTIME", GPU)
    assert "cannot load its CUDA provider" in error.message


def test_a_weight_that_the_bundle_lacks_is_refused(built, weights):
    error = refused(built, {"taehv": weights["taehv"]}, "VIDC-ENGINE-SIGNATURE")
    assert "weights" in error.message


def test_a_weight_of_another_shape_is_refused(built, weights, monkeypatch):
    monkeypatch.setattr(Weights, "__getitem__", lambda self, name: torch.zeros(1))
    refused(built, weights, "VIDC-ENGINE-SIGNATURE")


def test_other_inputs_than_the_manifests_are_refused(built, weights):
    first, *rest = built["text_kv"][1].signature.tensors
    other = replace(built["text_kv"][1].signature, tensors=(replace(first, shape=(1, 2, 3)), *rest))
    refused(built, weights, "VIDC-ENGINE-SIGNATURE", signature=other)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Failed to allocate memory for requested buffer of size 17", torch.OutOfMemoryError),
        ("CUDA failure 2: out of memory ; GPU=0", torch.OutOfMemoryError),
        ("CUDA failure 700: an illegal memory access", EngineRunError),
    ],
)
def test_gpu_faults_become_coded_errors(built, weights, on_gpu, said, error):
    on_gpu(fails=Exception(said))
    folder, entry = built["text_kv"]
    engine = load(Files(folder), entry, Weights(weights, CPU), GPU)
    with pytest.raises(error, match=said[:20]) as caught:
        engine.run(Buffers(engine.signature, CPU), States([engine.signature], CPU))
    assert type(caught.value) is error


def test_a_bundle_that_cannot_be_captured_is_warmed(monkeypatch):
    monkeypatch.setattr(graphs, "GraphRunner", lambda device: "captures")
    assert not capturable("onnxruntime")
    assert all(capturable(name) for name in ("aoti", "tensorrt"))
    assert type(Runners.on(GPU, captured=False)["any"]) is WarmRunner
    assert Runners.on(GPU, captured=True)["any"] == "captures"
    assert type(Runners.on(CPU, captured=False)["any"]) is Runner


def test_warm_runner_runs_work_first_and_fetches_to_the_host(warm):
    ran = []
    works = warm["latents"].prepare([lambda: ran.append(1), lambda: ran.append(2)])
    assert ran == [1, 2, 1, 2]
    works[1]()
    assert ran[-1] == 2
    tensor = torch.arange(3)
    torch.testing.assert_close(warm["frames"].fetch(tensor)(), tensor)
