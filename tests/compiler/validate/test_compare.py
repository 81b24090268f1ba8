"""Gates of a comparison, and the errors of PyTorch itself."""

import json
from dataclasses import replace

import pytest
import torch

from vidc.compiler.validate import compare as comparing
from vidc.compiler.validate import reference as eager_module
from vidc.compiler.validate.check import Validation
from vidc.compiler.validate.compare import (
    BlockFrames,
    Limits,
    _rollout_gates,
    compare_rollouts,
    compare_with_golden,
    worst_of_calls,
)
from vidc.compiler.validate.gates import (
    OF_EAGER,
    Where,
    all_passed,
    load_thresholds,
    load_trained_thresholds,
    looser,
)
from vidc.compiler.validate.metrics import compare
from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.errors import GateError

CPU = torch.device("cpu")
ROLLOUT = Scenario(blocks=2, switch_after=1, rollout=True)
LONG = Scenario(blocks=5, switch_after=2, rollout=True)


@pytest.fixture(scope="module")
def golden(model, tmp_path_factory):
    return model.golden(tmp_path_factory.mktemp("golden"), ROLLOUT)


@pytest.fixture(scope="module")
def mixed(model, tmp_path_factory):
    """Golden data of the model in bfloat16."""
    return model.golden(tmp_path_factory.mktemp("mixed"), ROLLOUT, "bf16")


@pytest.fixture(scope="module")
def long(model, tmp_path_factory):
    """Golden data that keep the frames of every block but one."""
    return model.golden(tmp_path_factory.mktemp("long"), LONG)


def held(model, golden, without=(), precisions=None):
    engines = {name: engine for name, engine in model.engines.items() if name not in without}
    given = dict.fromkeys(engines, "fp32") if precisions is None else precisions
    return compare_with_golden(golden, model.player(engines), given)


def missing(comparison):
    return {gate.component for gate in comparison.gates if gate.value is None}


def test_eager_engines_pass_all_gates(model, golden):
    comparison = held(model, golden)
    assert all_passed(comparison.gates)
    assert {row.subject.component for row in comparison.components} == {*model.engines}


@pytest.mark.parametrize(
    "component", ["text_kv", "denoise", "recache_6", "recache_9", "vae_decode"]
)
def test_missing_stream_component_fails(model, golden, component):
    comparison = held(model, golden, without=[component])
    assert missing(comparison) == {component}
    assert not all_passed(comparison.gates)


def test_missing_reference_component_fails(model, golden):
    encoders = ("vae_encode_first", "vae_encode")
    comparison = held(model, golden, without=encoders)
    assert missing(comparison) == {*encoders}
    assert {gate.component for gate in comparison.gates if not gate.passed} == {*encoders}


def test_pixels_are_held_to_the_looser_precision(model, mixed):
    vae = {"vae_decode_first", "vae_decode"}
    precisions = {name: "bf16" if name in vae else "fp32" for name in model.engines}
    pixels = load_thresholds("bf16")[Where.PIXELS]
    assert pixels != load_thresholds("fp32")[Where.PIXELS]
    for swapped in (False, True):
        if swapped:
            precisions = {n: "fp32" if p == "bf16" else "bf16" for n, p in precisions.items()}
        gates = held(model, mixed, precisions=precisions).gates
        found = {gate.metric: gate.threshold for gate in gates if gate.where is Where.PIXELS}
        assert found == pixels


def test_looser_keeps_shared_metrics():
    one, other = {"relative_l2": 0.1, "ssim": 0.9}, {"relative_l2": 0.2, "ssim": 0.99, "psnr_db": 1}
    assert looser(one, other) == looser(other, one) == {"relative_l2": 0.2, "ssim": 0.9}


def test_eager_stands_beside_the_engines(model, mixed):
    comparison = held(model, mixed)
    assert all(row.metrics.relative_l2 < row.eager.relative_l2 for row in comparison.components)
    assert all(1e-4 < row.eager.relative_l2 < 1 for row in comparison.rollout)
    assert worst_of_calls(mixed.eager, mixed.reference) == {
        row.subject.component: row.eager for row in comparison.components
    }


class Louder:
    """An engine whose outputs are too large, by a thousandth if not told otherwise."""

    def __init__(self, engine, factor=1.001):
        self.signature = engine.signature
        self._engine, self._factor = engine, factor

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        for output in buffers.outputs.values():
            output.mul_(self._factor)


class Deaf(Louder):
    """An engine that runs on inputs of zeros."""

    def run(self, buffers, states):
        for name in buffers.inputs:
            if name.startswith("latent"):
                buffers[name].zero_()
        self._engine.run(buffers, states)


@pytest.mark.parametrize(("eager_error", "passes"), [(1e-3, True), (0.7e-3, False)])
def test_an_engine_may_not_err_much_more_than_eager(model, mixed, eager_error, passes):
    calls = [
        (name, {key: value * (1 + eager_error) for key, value in written.items()})
        for name, written in mixed.reference.calls
    ]
    golden = replace(mixed, eager=replace(mixed.eager, calls=calls))
    engines = model.engines | {"denoise": Louder(model.engines["denoise"])}
    precisions = dict.fromkeys(engines, "bf16")
    gates = compare_with_golden(golden, model.player(engines), precisions).gates
    failed = {(gate.component, gate.metric) for gate in gates if not gate.passed}
    assert failed == (set() if passes else {("denoise", "relative_l2")})


def test_a_rollout_as_a_whole_is_held_to_eager(model, mixed):
    precisions = dict.fromkeys(model.engines, "bf16")
    comparison = held(model, mixed, precisions=precisions)
    *blocks, whole = comparison.rollout
    errors = [row.eager.relative_l2 for row in blocks]
    assert min(errors) < whole.eager.relative_l2 < max(errors)
    limit = load_thresholds("bf16")[Where.ROLLOUT]["relative_l2"]
    assert {
        gate.block: gate.threshold
        for gate in comparison.gates
        if (gate.where, gate.metric) == (Where.ROLLOUT, "relative_l2")
    } == dict.fromkeys(range(len(blocks)), limit) | {None: 1.25 * whole.eager.relative_l2}


@pytest.mark.parametrize(("eager_error", "passes"), [(1e-3, True), (0.7e-3, False)])
def test_a_rollout_may_not_err_much_more_than_eagers(model, mixed, eager_error, passes):
    latents = mixed.reference.played.latents
    played = replace(mixed.reference.played, latents=[latent * 1.001 for latent in latents])
    own = replace(mixed.eager_rollout, latents=[latent * (1 + eager_error) for latent in latents])
    golden = replace(mixed, eager_rollout=own)
    frames = [
        BlockFrames(block, own_frames, own_frames, decoded=False)
        for block, own_frames in played.frames.items()
    ]
    rows = compare_rollouts(played, golden.reference.played, own, frames)
    gates = _rollout_gates(golden, rows, Limits("bf16", "bf16"))
    failed = {(gate.block, gate.metric) for gate in gates if not gate.passed}
    assert failed == (set() if passes else {(None, "relative_l2")})


@pytest.mark.parametrize(("precision", "rounded"), [("fp32", 0.05), ("bf16", 0.15), ("fp16", 0.05)])
def test_rounded_feedback_has_at_least_the_limits_of_fp16(mixed, precision, rounded):
    rows = compare_rollouts(mixed.reference.played, mixed.reference.played, mixed.eager_rollout)

    def limits(feedback):
        gates = _rollout_gates(mixed, rows, Limits(precision, precision, rounded=feedback))
        found = {
            g.threshold for g in gates if (g.where, g.metric) == (Where.ROLLOUT, "relative_l2")
        }
        return found, [gate for gate in gates if gate.where is Where.PIXELS]

    (exact, pixels), (loose, same) = limits(False), limits(True)
    assert loose == {rounded}
    assert max(exact) == load_thresholds(precision)[Where.ROLLOUT]["relative_l2"]
    assert pixels == same


def test_the_json_of_a_validation_is_strict(model, mixed):
    comparison = held(model, mixed)
    endless = compare(torch.tensor([torch.inf]), torch.ones(1))
    rows = [replace(row, eager=endless) for row in comparison.components]
    comparison = replace(comparison, components=rows)
    named = type("Named", (), {"name": "tiny"})
    document = Validation(named, mixed, comparison).to_json()
    eager = json.loads(json.dumps(document, allow_nan=False))["eager"]
    assert {*eager["components"].values()} == {None}
    assert len(eager["rollout"]) == ROLLOUT.blocks
    assert all(0 < error < 1 for error in [*eager["rollout"], eager["whole_rollout"]])


def test_one_precision_is_in_memory_at_a_time(model, tmp_path, monkeypatch):
    alive = 0
    most = []
    make = eager_module.EagerEngine

    class Counted(make):
        def __init__(self, component):
            nonlocal alive
            super().__init__(component)
            alive += 1
            most.append(alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    monkeypatch.setattr(eager_module, "EagerEngine", Counted)
    model.golden(tmp_path, replace(ROLLOUT, rollout=False), "bf16")
    assert len(most) == 2 * len(model.engines)
    assert max(most) == len(model.engines)


def test_the_replay_runs_on_the_device_of_the_engines(model, golden, monkeypatch):
    class StoppedError(Exception):
        pass

    def record(player, scenario, inputs, **__):
        raise StoppedError(inputs.noise.device, inputs.prompts.device)

    monkeypatch.setattr(comparing, "record", record)
    device = torch.device("meta")
    with pytest.raises(StoppedError) as stop:
        compare_with_golden(golden, model.player(device=device), {})
    assert stop.value.args == (device, device)


def test_every_block_is_compared_in_pixels(model, long):
    comparison = held(model, long)
    assert sorted(long.reference.played.frames) == [0, 1, 2, 4]
    assert [(each.block, each.decoded) for each in comparison.frames] == [
        (0, False), (1, False), (2, False), (3, True), (4, False),
    ]  # fmt: skip
    # The same VAE decodes the same latents: what golden data do not keep comes out as it would be.
    assert all(torch.equal(each.engine, each.reference) for each in comparison.frames)
    gated = [gate.block for gate in comparison.gates if gate.metric == "psnr_db"]
    assert gated == [0, 1, 2, 3, 4]
    assert all_passed(comparison.gates)
    assert [pair.block for pair in comparison.pairs] == [0, 1, 2, 4]


def test_a_block_whose_frames_are_not_kept_is_gated_all_the_same(model, long):
    latents = [latent.clone() for latent in long.reference.played.latents]
    latents[3] += 0.5
    played = replace(long.reference.played, latents=latents)
    golden = replace(long, reference=replace(long.reference, played=played))
    failed = {
        (gate.block, gate.metric)
        for gate in held(model, golden).gates
        if gate.where is Where.PIXELS and not gate.passed
    }
    assert (3, "psnr_db") in failed
    # Golden frames of the next block know nothing of it.
    assert {block for block, _ in failed} == {3}


class Blind:
    """A decoder that gives NaN."""

    def __init__(self, engine):
        self.signature = engine.signature
        self._engine = engine

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        buffers["frames"].fill_(torch.nan)


def test_a_decoder_of_nan_passes_no_block(model, long):
    """As bytes, the NaN of the engine's own frames and of the decoded reference would be equal."""
    engines = model.engines | {"vae_decode": Blind(model.engines["vae_decode"])}
    precisions = dict.fromkeys(engines, "fp32")
    comparison = compare_with_golden(long, model.player(engines), precisions)
    psnr = {gate.block: gate for gate in comparison.gates if gate.metric == "psnr_db"}
    assert [gate.passed for gate in psnr.values()] == [True, False, False, False, False]
    assert psnr[3].value is None
    assert [each.block for each in comparison.frames] == [0, 1, 2, 4]


def test_lpips_is_measured_block_by_block(model, long):
    seen = []

    def lpips(actual, reference):
        seen.append((actual.shape, reference.shape))
        return 0.5

    precisions = dict.fromkeys(model.engines, "fp32")
    comparison = compare_with_golden(long, model.player(), precisions, lpips=lpips)
    assert [row.lpips for row in comparison.rollout] == [0.5] * 5 + [None]
    assert seen == [((9, 3, 16, 32),) * 2] + [((12, 3, 16, 32),) * 2] * 4


def test_json_matches_rows(model, mixed):
    comparison = held(model, mixed)
    named = type("Named", (), {"name": "tiny"})
    document = json.loads(
        json.dumps(Validation(named, mixed, comparison, "no reason").to_json(), allow_nan=False)
    )
    components = {row["component"]: row for row in document["components"]}
    assert set(components) == set(model.engines)
    for row in comparison.components:
        assert components[row.subject.component]["relative_l2"] == row.metrics.relative_l2
    for row, found in zip(comparison.rollout, document["rollout"], strict=False):
        assert found["block"] == row.block
        assert (found["sqnr_db"] is None) == (row.latents.relative_l2 == 0)
        assert found["ssim"] == row.pixels.ssim
        assert found["frames_reference"] == "golden"
    assert document["lpips"] == {"measured": False, "reason": "no reason"}


@pytest.mark.parametrize("precision", ["fp8", "int8"])
@pytest.mark.parametrize("trained", [True, False])
def test_trained_weights_have_own_thresholds_for_every_decoder(model, mixed, precision, trained):
    vae = {"vae_decode_first", "vae_decode", "vae_encode_first", "vae_encode"}
    precisions = {name: "bf16" if name in vae else precision for name in model.engines}
    golden = replace(mixed, scenario=replace(mixed.scenario, free_gates=True))
    comparison = compare_with_golden(golden, model.player(), precisions, trained=trained)
    anyway = looser(load_thresholds(precision)[Where.PIXELS], load_thresholds("bf16")[Where.PIXELS])
    for where in (Where.PIXELS, Where.FORCED):
        found = {gate.metric: gate.threshold for gate in comparison.gates if gate.where is where}
        assert found == (load_trained_thresholds(precision, where) if trained else anyway)
    limits = dict(load_thresholds(precision)[Where.COMPONENT])
    times = limits.pop(OF_EAGER)
    assert times == {"fp8": 1.5, "int8": 1.25}[precision]
    (row,) = (row for row in comparison.components if row.subject.component == "denoise")
    limits["relative_l2"] = min(limits["relative_l2"], times * row.eager.relative_l2)
    found = {g.metric: g.threshold for g in comparison.gates if g.component == "denoise"}
    assert found == limits
    assert all_passed(comparison.gates)


def test_free_rollouts_of_trained_weights_in_8_bits_are_gated_on_request(model, mixed):
    precisions = dict.fromkeys(model.engines, "int8")
    for trained, free_gates, gated in (
        (True, False, False), (True, True, True), (False, False, True),
    ):  # fmt: skip
        golden = replace(mixed, scenario=replace(mixed.scenario, free_gates=free_gates))
        comparison = compare_with_golden(golden, model.player(), precisions, trained=trained)
        where = {gate.where for gate in comparison.gates}
        # Without gates of their own, latents must be finite all the same.
        free = {Where.ROLLOUT, Where.PIXELS} if gated else {Where.ROLLOUT}
        assert where == {Where.COMPONENT, Where.FORCED} | free
        # What is not gated is reported all the same.
        assert all(row.pixels and row.forced for row in comparison.rollout[:-1])


@pytest.mark.parametrize("component", ["denoise", "kv_update", "vae_decode"])
def test_a_faulty_engine_fails_the_gates_of_forced_blocks(model, mixed, component):
    engines = model.engines | {component: Louder(model.engines[component], 3.0)}
    if component == "kv_update":
        engines[component] = Deaf(model.engines[component])
    precisions = dict.fromkeys(engines, "int8")
    gates = compare_with_golden(mixed, model.player(engines), precisions, trained=True).gates
    failed = {gate.block for gate in gates if gate.where is Where.FORCED and not gate.passed}
    # The first block reads no cache, and another component decodes it.
    assert failed == {*range(ROLLOUT.blocks)} - ({0} if component != "denoise" else set())


def test_a_free_rollout_that_is_not_finite_fails_though_only_forced_blocks_have_limits(
    model, mixed
):
    engines = model.engines | {"denoise": Louder(model.engines["denoise"], torch.nan)}
    precisions = dict.fromkeys(engines, "int8")
    gates = compare_with_golden(mixed, model.player(engines), precisions, trained=True).gates
    assert [gate.passed for gate in gates if gate.where is Where.ROLLOUT] == [
        False
    ] * ROLLOUT.blocks


def test_forced_blocks_do_not_gather_the_errors_of_earlier_ones(model, mixed):
    """Flows that are a hundredth too large: the error of a free rollout grows, a forced one's not.

    The caches of forced blocks are those of the reference's latents.
    """
    engines = model.engines | {"denoise": Louder(model.engines["denoise"], 1.01)}
    precisions = dict.fromkeys(engines, "int8")
    rows = compare_with_golden(mixed, model.player(engines), precisions).rollout[:-1]
    assert rows[0].forced.psnr_db == pytest.approx(rows[0].pixels.psnr_db)
    assert all(row.forced.psnr_db >= row.pixels.psnr_db - 0.1 for row in rows[1:])
    latents = mixed.reference.played.latents
    forced = model.player(engines).rollout(mixed.scenario, mixed.inputs, forced=latents)
    free = model.player(engines).rollout(mixed.scenario, mixed.inputs)
    errors = [
        [float((made - asked).norm() / asked.norm()) for made, asked in zip(*pair, strict=True)]
        for pair in ((forced.latents, latents), (free.latents, latents))
    ]
    assert errors[0][0] == pytest.approx(errors[1][0])
    assert max(errors[0]) < max(errors[1])


@pytest.mark.parametrize("precision", ["fp8", "int8", "bf16"])
def test_refuses_golden_data_without_eager_record(model, golden, mixed, precision):
    precisions = dict.fromkeys(model.engines, "fp32") | {"kv_update": precision}
    without = [call for call in mixed.eager.calls if call[0] != "kv_update"]
    for data in (golden, replace(mixed, eager=replace(mixed.eager, calls=without))):
        with pytest.raises(GateError, match=rf"VIDC-VALIDATE-GOLDEN.*kv_update in {precision}"):
            compare_with_golden(data, model.player(), precisions)


def test_a_rollout_without_pytorchs_own_is_not_held_to_less(model, mixed):
    data = replace(mixed, eager_rollout=None)
    with pytest.raises(GateError, match=r"VIDC-VALIDATE-GOLDEN.*makes of the rollout in bf16"):
        held(model, data, precisions=dict.fromkeys(model.engines, "bf16"))
    # In float16 and in 8 bits a rollout is held to no multiple of PyTorch's.
    assert held(model, data, precisions=dict.fromkeys(model.engines, "int8")).gates


@pytest.mark.parametrize("precision", ["bf16", "int8", "fp8"])
def test_an_error_of_pytorch_that_is_no_number_gives_no_limit(model, mixed, precision):
    calls = [
        (name, {key: value.clone() for key, value in written.items()})
        for name, written in mixed.eager.calls
    ]
    written = next(written for name, written in calls if name == "kv_update")
    next(iter(written.values())).view(-1)[0] = torch.inf
    data = replace(mixed, eager=replace(mixed.eager, calls=calls))
    precisions = dict.fromkeys(model.engines, precision)
    expected = rf"NaN or Inf in what PyTorch makes of kv_update in {precision}"
    with pytest.raises(GateError, match=expected):
        held(model, data, precisions=precisions)


def test_an_error_of_pytorchs_rollout_that_is_no_number_gives_no_limit(model, mixed):
    first, *rest = mixed.eager_rollout.latents
    latents = [torch.full_like(first, torch.nan), *rest]
    data = replace(mixed, eager_rollout=replace(mixed.eager_rollout, latents=latents))
    expected = "VIDC-VALIDATE-GOLDEN.*NaN or Inf in what PyTorch makes of the rollout in bf16"
    with pytest.raises(GateError, match=expected):
        held(model, data, precisions=dict.fromkeys(model.engines, "bf16"))
