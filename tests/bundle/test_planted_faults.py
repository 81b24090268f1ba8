"""Validation passes on what was built, and fails on every planted fault by the gate meant for it.

``TWENTY`` is the whole list. A fault is planted in an engine's tensors, in a bundle's weights or in
a calibration.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bundle_8bit import overwrite
from modelopt_here import needs_modelopt
from safetensors.torch import load_file

from vidc.compiler.build.calibration_rollouts import Rollouts
from vidc.compiler.build.stages import slot, stages
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.artifact import read_calibration, write_calibration
from vidc.compiler.quantize.ranges import finished, merged
from vidc.compiler.store.run import run
from vidc.compiler.store.store import Store
from vidc.compiler.validate.compare import compare_with_golden
from vidc.compiler.validate.gates import Where
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.play import Player
from vidc.compiler.validate.reference import eager_engines
from vidc.plugins.errors import GateError
from vidc.plugins.names import weights_path
from vidc.runtime.engines import Wrapper
from vidc.runtime.manifest import read_manifest

COMPONENT, PIXELS, FORCED = Where.COMPONENT, Where.PIXELS, Where.FORCED
Tensors = Mapping[str, torch.Tensor]


class Faulty:
    """An engine with a planted fault; ``runs`` says of each call whether it runs at all."""

    def __init__(self, engine, before=None, after=None, runs=lambda call: True):
        self.signature = engine.signature
        self._engine, self._before, self._after, self._runs = engine, before, after, runs
        self._calls = 0

    def run(self, buffers, states):
        if self._before is not None:
            self._before(buffers, states)
        if self._runs(self._calls):
            self._engine.run(buffers, states)
        self._calls += 1
        if self._after is not None:
            self._after(buffers, states)


@pytest.fixture
def judge(project, bundle, golden):
    precisions = {n: e.precision for n, e in read_manifest(project.bundle).engines.items()}

    def compare(rollout=True, **faults):
        scenario = replace(golden.scenario, rollout=rollout)
        engines = dict(bundle.engines)
        for name, fault in faults.items():
            engines[name] = Faulty(engines[name], **fault)
        player = Player(bundle.program, bundle.resources).with_engines(engines)
        return compare_with_golden(replace(golden, scenario=scenario), player, precisions)

    return compare


def failures(comparison) -> dict[Where, set[str]]:
    failed = [gate for gate in comparison.gates if not gate.passed]
    return {where: {g.component for g in failed if g.where is where} for where in Where}


def shift(name, by):
    def apply(buffers, states):
        buffers[name].add_(by)

    return {"before": apply}


def stale_key(buffers, states):
    # One token of the newest block keeps the key of the block before.
    ring = states["ring.k.0"]
    ring[:, 0] = ring[:, 1]


def without_sink(buffers, states):
    for name in ("ring.k.0", "ring.v.0"):
        states[name][:, : states[name].shape[1] * 3 // 8] = 0  # The sink is 3 of 8 frames.


def turned(buffers, states):
    cos = buffers["rope_cos"].clone()
    buffers["rope_cos"].copy_(buffers["rope_sin"])
    buffers["rope_sin"].copy_(cos)


def larger(buffers, states):
    buffers["latent"].mul_(1.1)


def not_a_number(buffers, states):
    for output in buffers.outputs.values():
        output[0] = torch.nan


def unwritten(buffers, states):
    for output in buffers.outputs.values():
        output.fill_(torch.nan)


def forgetful(engine_states):
    def erase(buffers, states):
        for name in engine_states:
            states[name].zero_()

    return erase


NEVER = {"runs": lambda call: False}
ONCE = {"runs": lambda call: call == 0}
ENGINES = {
    "slot off by one": (COMPONENT, "kv_update", shift("position", 1)),
    "slot off by a window once the ring is full": (COMPONENT, "recache_5", shift("position", -6)),
    "stale key": (COMPONENT, "kv_update", {"after": stale_key}),
    "block without its clean pass": (COMPONENT, "kv_update", NEVER),
    "wrong length": (COMPONENT, "denoise", shift("valid_length", -1)),
    "dropped sink": (COMPONENT, "denoise", {"before": without_sink}),
    "wrong rotation": (COMPONENT, "denoise", {"before": turned}),
    "wrong timestep": (COMPONENT, "denoise", shift("timestep", 10.0)),
    "prompt of before the switch": (COMPONENT, "text_kv", ONCE),
    "window not recomputed at a switch": (COMPONENT, "recache_5", NEVER),
    "NaN in an output": (COMPONENT, "denoise", {"after": not_a_number}),
    "output not written": (COMPONENT, "vae_decode", {"after": unwritten}),
    "latents of another scale": (PIXELS, "rollout", {"vae_decode": {"before": larger}}),
    "decoder without memory": (COMPONENT, "vae_decode", "states"),
}
"""Gate, its component, and the fault; other engines than the component's by name."""
LAYER, RING = "blocks.0.ffn.net.2", "blocks.1.attn1.ring"


def exchanged(tensors: Tensors, one: str, other: str) -> Tensors:
    return {**tensors, one: tensors[other], other: tensors[one]}


WEIGHTS: dict[str, Callable[[Tensors], Tensors]] = {
    "scale doubled": lambda t: t | {f"{LAYER}.weight_scale": 2 * t[f"{LAYER}.weight_scale"]},
    "layer skipped": lambda t: t | {f"{LAYER}.weight_scale": 0 * t[f"{LAYER}.weight_scale"]},
    "scales of keys and values swapped": lambda t: exchanged(
        t, f"{RING}.keys.scale", f"{RING}.values.scale"
    ),
    "mean not taken off": lambda t: (
        t | {name: 0 * tensor for name, tensor in t.items() if name.endswith("r.mean")}
    ),
}
"""Faults in a bundle whose layers are in 8 bits: all fail the gates of denoise and kv_update."""


class Instead(Wrapper):
    """An engine that is given another input than the one that comes."""

    def __init__(self, engine, name, replace_input):
        super().__init__(engine)
        self.module, self._name, self._replace = engine.module, name, replace_input

    def run(self, buffers, states):
        self._replace(buffers[self._name])
        self._engine.run(buffers, states)


CALIBRATIONS = {
    "calibration on noise": ("latent", lambda latent: latent.normal_()),
    "another timestep's ranges": ("timestep", lambda timestep: timestep.fill_(0)),
}
"""Faults in what a calibration sees: all are refused with VIDC-CALIBRATION-RANGE."""
TWENTY = [*ENGINES, *WEIGHTS, *CALIBRATIONS]


def test_the_list_has_twenty_faults():
    assert len(set(TWENTY)) == 20


def test_a_bundle_passes(judge):
    comparison = judge()
    assert failures(comparison) == {where: set() for where in Where}
    assert {gate.where for gate in comparison.gates} == set(Where) - {FORCED}
    rollout = [gate for gate in comparison.gates if gate.where is Where.ROLLOUT]
    assert [gate.block for gate in rollout] == [*range(8), None]


@pytest.mark.parametrize("name", ENGINES)
def test_a_fault_in_an_engine_fails_its_gate(judge, bundle, name):
    where, component, fault = ENGINES[name]
    if fault == "states":
        states = [state.name for state in bundle.engines[component].signature.states]
        fault = {"before": forgetful(states)}
    if where is COMPONENT:
        fault = {component: fault}
    found = failures(judge(rollout=where is not COMPONENT, **fault))
    assert component in found[where]


@needs_modelopt
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_fault_in_weights_of_8_bits_fails_the_gates_of_their_components(
    mixed, vidc, tmp_path, name
):
    bundle = shutil.copytree(mixed, tmp_path / "bundle")
    path = bundle / "weights/transformer.safetensors"
    # Copies, for a file that is mapped is about to be overwritten.
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    changed = {n: tensor.clone() for n, tensor in WEIGHTS[name](tensors).items()}
    assert any(not torch.equal(changed[n], tensor) for n, tensor in tensors.items())
    overwrite(bundle, path, changed)
    status, out, err = vidc("validate", str(bundle), "--json")
    assert status == 1, err
    failed = {gate["component"] for gate in json.loads(out)["gates"] if not gate["passed"]}
    assert {"denoise", "kv_update"} <= failed
    assert not failed & {"vae_decode", "vae_decode_first"}


DEMO = Path(__file__).parents[2] / "configs/demo"
PROMPTS = [f"a {color} square moving left over grass" for color in ("red", "blue")]
SHORT = ["validate.blocks=3", "validate.switch_after=2", "vae.kind=taehv"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Plays golden data of the demo in INT8, by a calibration or by its own."""
    given = [*SHORT, f"calibrate.prompts={json.dumps(PROMPTS)}"]
    settings = resolve("demo", gpu="cpu", precision="int8", assignments=given, environ={})
    model, sources = SourceOptions(DEMO).resolve(settings.model)
    settings, cache = replace(settings, model=model), tmp_path_factory.mktemp("demo") / "cache"

    def play(calibration=None):
        made = stages(settings, replace(sources, calibration=calibration))
        wanted = [each for each in made if each.name.startswith(("load", "calibrate", "golden"))]
        with Store(cache) as store:
            results = run(wanted, store, slot(settings), LineProgress())
        return {name: result.path for name, result in results.items()}

    return model, play, play()


@needs_modelopt
@pytest.mark.parametrize("name", [*CALIBRATIONS, None])
def test_a_fault_in_a_calibration_is_refused(demo, tmp_path, name):
    """Trained weights are needed: what random ones compute hardly depends on latent and time.

    The same rollouts with an unchanged latent are taken.
    """
    model, play, good = demo
    place, replace_input = CALIBRATIONS.get(name, ("latent", lambda latent: None))
    group = model.quantized_group
    files = {group: good[f"load:{group}"] / weights_path(group)}
    engines = eager_engines(model, files, {group: "fp32"}, torch.device("cpu"))
    watched = {
        component: Instead(engine, place, replace_input)
        for component, engine in engines.items()
        if place in [spec.name for spec in engine.signature.inputs]
    }
    torch.manual_seed(0)
    rollouts = Rollouts(model, engines | watched, torch.device("cpu"), seed=0)
    prompts = Golden.load(good["golden"]).inputs.prompts[:, 0]
    both = merged(rollouts.ranges(0, prompts), rollouts.ranges(1, prompts.flip(0)))
    ranges = rollouts.weights() | both
    document = read_calibration(good[f"calibrate:{group}"], model).document
    (tmp_path / "faulty").mkdir()
    write_calibration(tmp_path / "faulty", document, finished(ranges))
    fault = pytest.raises(GateError, match="VIDC-CALIBRATION-RANGE")
    with fault if name else nullcontext():
        play(tmp_path / "faulty")


def test_a_fault_in_the_cache_shows_in_the_rollout(judge):
    failed = failures(judge(kv_update={"after": stale_key}))
    assert failed[Where.ROLLOUT]


def test_a_fault_in_decoding_shows_in_the_pixels(judge):
    failed = failures(judge(vae_decode=shift("latent", 0.1)))
    assert not failed[Where.ROLLOUT]
    assert failed[Where.PIXELS]


@pytest.mark.parametrize("component", ["text_kv", "vae_decode_first"])
def test_a_state_that_is_not_written_is_caught(judge, bundle, component):
    signature = bundle.engines[component].signature

    def erase(buffers, states):
        for spec in signature.states:
            states[spec.name].fill_(torch.nan)

    failed = failures(judge(rollout=False, **{component: {"after": erase}}))
    assert component in failed[Where.COMPONENT]


def test_a_component_without_an_engine_fails(project, bundle, golden):
    precisions = {"denoise": "fp32", "image_encoder": "fp32"}
    player = Player(bundle.program, bundle.resources)
    comparison = compare_with_golden(golden, player, precisions)
    assert failures(comparison)[Where.COMPONENT] == {"image_encoder"}


def test_nan_in_a_candidate_is_told_by_name(judge):
    comparison = judge(denoise={"after": not_a_number})
    failed = {(g.component, g.block, g.metric) for g in comparison.gates if not g.passed}
    assert ("denoise", None, "relative_l2") in failed
    assert {("rollout", block, "psnr_db") for block in range(8)} <= failed
    worst = comparison.worst[0]
    assert (worst.component, worst.tensor) == ("denoise", "flow")
    assert worst.not_finite > 0
    assert any(outlier.candidate != outlier.candidate for outlier in worst.outliers)
