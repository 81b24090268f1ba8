"""Sessions of a small bundle that was built on this GPU: a block is one replay, always the same."""

import gc
import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.build.build import whole
from vidc.compiler.build.handed_over import open_portable, rest
from vidc.compiler.build.handover import begun
from vidc.compiler.build.sources import Sources
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.config.resolve import resolve
from vidc.plugins.errors import GateError, UnavailableError, UsageError
from vidc.runtime import load
from vidc.runtime.engines import Wrapper
from vidc.runtime.graphs import GraphRunner
from vidc.runtime.manifest import read_manifest
from vidc.runtime.programs.base import Resources

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=256")
SOURCES = Sources({}, seed=1)


def settings(*assignments: str):
    return resolve("tiny", precision="bf16", assignments=SMALL + assignments, environ={})


@pytest.fixture(scope="module")
def cache(hopper, tmp_path_factory):
    try:
        version("flash-attn-4")
    except PackageNotFoundError:
        pytest.skip("the extra cuda is not installed")
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def built(cache):
    return whole(settings(), SOURCES).run(cache.with_name("direct"), cache, LineProgress()).output


@pytest.fixture(scope="module")
def bundle(built):
    return load(built)


def prompt(bundle, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(bundle.spec.batch, *bundle.spec.text, generator=generator)


def noise(bundle, seed: int) -> torch.Tensor:
    spec = bundle.spec
    shape = (len(spec.sigmas), spec.batch, spec.block, *spec.latent)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def rollout(session, bundle, blocks: int = 8, switch_after: int = 5) -> torch.Tensor:
    session.prompt(prompt(bundle, 1))
    latents = []
    for block in range(blocks):
        if block == switch_after:
            session.switch_prompt(prompt(bundle, 2))
        latents.append(session.generate(noise(bundle, block)))
        session.decode(latents[-1])
    return torch.stack(latents)


def test_replays_are_what_the_engines_do_when_called(bundle):
    direct = bundle.program(Resources(bundle.spec, bundle.engines, bundle.device))
    assert torch.equal(rollout(bundle.session(), bundle), rollout(direct, bundle))


def test_equal_noise_gives_equal_bits(bundle):
    assert torch.equal(rollout(bundle.session(), bundle), rollout(bundle.session(), bundle))


def test_a_session_opens_after_all_others_have_ended(built):
    bundle = load(built)
    first = rollout(bundle.session(), bundle, blocks=2)
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.equal(rollout(bundle.session(), bundle, blocks=2), first)


def test_reset_makes_a_session_as_new_without_capture_or_allocation(bundle, monkeypatch):
    expected = rollout(bundle.session(seed=1), bundle)
    session = bundle.session(seed=2)
    rollout(session, bundle)
    torch.cuda.synchronize()
    taken = torch.cuda.memory_stats()["allocation.all.allocated"]
    monkeypatch.setattr(torch.cuda, "CUDAGraph", None)
    session.reset(seed=1)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == taken
    assert torch.equal(rollout(session, bundle), expected)


def test_a_switch_is_captured_at_its_first_call(bundle, monkeypatch):
    captures = []
    capture = GraphRunner._capture
    monkeypatch.setattr(GraphRunner, "_capture", lambda *a: captures.append(1) or capture(*a))
    session = bundle.session()
    opened = len(captures)
    first = rollout(session, bundle)
    assert len(captures) == opened + 1
    session.reset()
    assert torch.equal(rollout(session, bundle), first)
    assert len(captures) == opened + 1


def test_close_gives_back_what_a_session_took(bundle):
    bundle.session().close()
    gc.collect()
    before = torch.cuda.memory_allocated()
    session = bundle.session()
    rollout(session, bundle, blocks=2)
    assert torch.cuda.memory_allocated() > before
    session.close()
    assert torch.cuda.memory_allocated() == before


def test_a_closed_bundle_leaves_no_memory_behind(built):
    gc.collect()
    before = torch.cuda.memory_allocated()
    with load(built) as loaded:
        rollout(loaded.session(), loaded, blocks=2)
        assert torch.cuda.memory_allocated() > before
    del loaded
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("switch_after", [1, 3, 5])
def test_a_pending_pass_gives_the_bits_of_one_that_has_run(bundle, switch_after):
    pending = rollout(bundle.session(), bundle, switch_after=switch_after)
    session, latents = bundle.session(), []
    session.prompt(prompt(bundle, 1))
    for block in range(8):
        if block == switch_after:
            session.switch_prompt(prompt(bundle, 2))
        latents.append(session.generate(noise(bundle, block)))
        session.flush()
    assert torch.equal(torch.stack(latents), pending)


def test_sessions_take_turns_without_disturbing_each_other(bundle):
    alone = rollout(bundle.session(), bundle, blocks=4, switch_after=9)
    first, second = bundle.session(), bundle.session()
    for session, seed in ((first, 1), (second, 3)):
        session.prompt(prompt(bundle, seed))
    for block in range(4):
        second.step()
        assert torch.equal(first.generate(noise(bundle, block)), alone[block])


def test_a_block_is_two_launches_and_waits_for_nothing(bundle):
    """The clean pass of the block before, and the denoising steps."""
    session = bundle.session()
    session.prompt(prompt(bundle, 1))
    for _ in range(6):
        session.generate()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            session.generate()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    calls = {event.key: event.count for event in seen.key_averages()}
    assert calls["cudaGraphLaunch"] == 2
    assert (
        sum(n for key, n in calls.items() if key.startswith(("cudaLaunchKernel", "cuLaunch"))) < 8
    )
    assert not {key for key in calls if key.startswith(("cudaMalloc", "cudaFree"))}


@contextmanager
def on_another_gpu():
    """Makes another GPU the current one, where there is one."""
    with torch.cuda.device(torch.cuda.device_count() - 1):
        yield


@contextmanager
def on_another_stream():
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


STATES = {
    "gpu": on_another_gpu,
    "stream": on_another_stream,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cuda", torch.float16),
    "device": lambda: torch.device("meta"),
    "deterministic": deterministic,
}


@pytest.mark.parametrize("state", STATES)
def test_the_callers_torch_state_changes_nothing(bundle, state):
    prompts, given = (prompt(bundle, 1), prompt(bundle, 2)), noise(bundle, 0)

    def results(session):
        session.prompt(prompts[0])
        frames = [*session.stream(blocks=3)]
        session.switch_prompt(prompts[1])
        return [*frames, session.step(given), session.latents]

    outside = bundle.session(seed=3)
    expected = results(outside)
    outside.reset(seed=3)
    with STATES[state]():
        inside = bundle.session(seed=3)
        found = [results(session) for session in (inside, outside)]
        # Handed out on the caller's stream: this sum needs no other order.
        sums = [sum(tensor.sum(dtype=torch.float64) for tensor in these) for these in found]
    torch.cuda.synchronize()
    for these, total in zip(found, sums, strict=True):
        assert all(map(torch.equal, these, expected))
        assert total == sum(tensor.sum(dtype=torch.float64) for tensor in expected)
        assert not any(tensor.is_inference() for tensor in these)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_refused_at_the_door(bundle, value):
    session, alone = bundle.session(seed=6), bundle.session(seed=6)
    for one in (session, alone):
        one.prompt(prompt(bundle, 1))
    latent = session.generate()
    assert torch.equal(latent, alone.generate())
    calls = {session.prompt: prompt(bundle, 1).cuda(), session.step: noise(bundle, 0),
             session.decode: latent.clone()}  # fmt: skip
    for call, good in calls.items():
        for device in ("cpu", "cuda"):
            bad = good.to(device, copy=True)
            bad.view(-1)[-1] = value
            with pytest.raises(UsageError, match="VIDC-SESSION-FINITE"):
                call(bad)
    assert torch.equal(session.step(), alone.step())


def test_values_that_are_not_finite_end_a_session(built):
    """A weight is spoiled; the next step or its fetched frames tell, and then every call."""
    with load(built) as spoiled:
        session = spoiled.session(seed=6)
        session.prompt(prompt(spoiled, 1))
        session.step()
        engine = spoiled.engines["denoise"]
        while isinstance(engine, Wrapper):
            engine = engine._engine
        # Fused engines pack some weights, under names of their own.
        weight = next(t for n, t in engine._constants.items() if n.endswith("bias"))
        good = weight.clone()
        torch.cuda.synchronize()  # The session's stream does not wait for this one.
        weight.fill_(torch.nan)
        torch.cuda.synchronize()
        with pytest.raises(GateError, match="VIDC-SESSION-NOT-FINITE"):
            session.fetch(session.step())()
        with pytest.raises(GateError, match="VIDC-SESSION-NOT-FINITE"):
            session.step()
        torch.cuda.synchronize()
        weight.copy_(good)
        session.reset(seed=7)
        assert torch.equal(
            rollout(session, spoiled, blocks=2), rollout(spoiled.session(), spoiled, blocks=2)
        )


def test_two_threads_play_two_sessions_as_alone(bundle):
    alone = [rollout(bundle.session(), bundle, switch_after=n) for n in (2, 5)]
    sessions = [bundle.session(), bundle.session()]
    with ThreadPoolExecutor(2) as pool:
        found = [
            pool.submit(rollout, session, bundle, switch_after=n)
            for session, n in zip(sessions, (2, 5), strict=True)
        ]
    assert all(torch.equal(one, other.result()) for one, other in zip(alone, found, strict=True))


def test_a_child_that_is_forked_after_use_is_refused(bundle):
    session, (here, there) = bundle.session(), multiprocessing.Pipe()

    def act():
        try:
            session.reset()
        except UnavailableError as error:
            there.send(error.code)

    child = multiprocessing.get_context("fork").Process(target=act)
    child.start()
    try:
        assert here.poll(30), "the child hangs"
        assert here.recv() == "VIDC-SESSION-FORK"
    finally:
        child.kill()
        child.join()


def test_a_long_stream_takes_no_more_memory(bundle):
    gc.collect()  # What earlier tests left may go at any time.
    session = bundle.session(seed=4)
    session.prompt(prompt(bundle, 1))
    taken = []
    for block in range(120):
        session.fetch(session.step())()  # Frames that wait for a slow GPU would take more.
        if block in (19, 119):
            taken.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    (allocated, reserved), (later_allocated, later_reserved) = taken
    assert later_allocated <= allocated
    assert later_reserved <= reserved


def test_drawn_noise_is_what_the_seed_says(bundle):
    from vidc.runtime.noise import block_noise

    drawn, given = bundle.session(seed=7), bundle.session()
    spec, latents = bundle.spec, []
    for session in (drawn, given):
        session.prompt(prompt(bundle, 1))
    for block in range(3):
        shape = (spec.batch, spec.block, *spec.latent)
        explicit = block_noise(7, block, len(spec.sigmas), shape).cuda()
        latents.append((drawn.generate(), given.generate(explicit)))
    assert all(torch.equal(one, other) for one, other in latents)


def test_a_build_begun_elsewhere_is_the_same_build(built, cache, tmp_path):
    left = begun(settings(), SOURCES).run(tmp_path / "begun", cache, LineProgress())
    build = rest(open_portable(left.output))
    finished = build.run(tmp_path / "finished", tmp_path / "cache", LineProgress())
    direct, resumed = read_manifest(built), read_manifest(finished.output)
    assert resumed.stages.keys() == direct.stages.keys()
    portable_stages = [s for s in direct.stages if s.startswith(("load", "export", "kernel"))]
    assert portable_stages
    for stage in portable_stages:
        assert resumed.stages[stage] == direct.stages[stage]
    assert resumed.validation.passed


@pytest.fixture(scope="module")
def pair(cache):
    output = cache.with_name("pair")
    return load(
        whole(settings("stream.batch=2"), SOURCES).run(output, cache, LineProgress()).output
    )


def test_batch_two(pair):
    session = pair.session()
    latents = rollout(session, pair)
    assert latents.shape[1] == 2
    assert torch.isfinite(latents).all()
    assert not torch.equal(latents[:, 0], latents[:, 1])


def test_frames_are_fetched_to_pinned_memory(bundle):
    session = bundle.session(seed=2)
    session.prompt(prompt(bundle, 1))
    first, second = (session.step() for _ in range(2))
    fetched = [session.fetch(frames) for frames in (first, second)]
    session.step()
    for frames, wait in zip((first, second), fetched, strict=True):
        host = wait()
        assert host.is_pinned()
        assert torch.equal(host, frames.cpu())
        assert torch.from_dlpack(frames).data_ptr() == frames.data_ptr()


def test_what_is_needed_was_found_by_the_build(built, bundle):
    document = read_manifest(built)
    bundle.session()
    assert 0 < document.validation.working_bytes <= bundle.working_bytes()


@contextmanager
def filled(device, leave: int):
    """All memory of the device but ``leave`` bytes is taken inside, whatever happens there."""
    torch.cuda.empty_cache()
    held, size = [], torch.cuda.mem_get_info(device)[0]
    while size >= 2**20:  # In parts, because free memory is not all in one piece.
        size = min(size, torch.cuda.mem_get_info(device)[0] - leave)
        try:
            held.append(torch.empty(max(size, 0), dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            size //= 2
    try:
        yield
    finally:
        held.clear()
        torch.cuda.empty_cache()


def test_a_gpu_that_is_full_is_refused_before_anything_is_loaded(built, hopper):
    with (
        filled(hopper, leave=3 * 2**20),
        pytest.raises(UnavailableError, match="VIDC-GPU-MEMORY") as caught,
    ):
        load(built)
    assert "tiny-h" in caught.value.message
    assert "working memory" in caught.value.message
    load(built)


LOAD = """
import sys
from vidc.plugins.errors import UnavailableError
from vidc.runtime import load

try:
    load(sys.argv[1])
except UnavailableError as error:
    print(error.code)
"""


def test_a_gpu_too_full_for_cuda_itself_is_refused(built, hopper):
    with filled(hopper, leave=3 * 2**20):
        ended = subprocess.run(
            [sys.executable, "-c", LOAD, str(built)], capture_output=True, text=True, timeout=120
        )
    assert ended.stdout.strip() == "VIDC-GPU-MEMORY", ended.stderr


def test_a_session_that_does_not_fit_leaves_the_others_alone(bundle, hopper):
    before = rollout(bundle.session(), bundle, blocks=2)
    opened = []
    with (
        filled(hopper, leave=2**20),
        pytest.raises(UnavailableError, match="VIDC-SESSION-MEMORY"),
    ):
        opened.extend(bundle.session() for _ in range(100))
    opened.clear()
    torch.cuda.empty_cache()
    assert torch.equal(rollout(bundle.session(), bundle, blocks=2), before)


LOSE = """
import sys, torch
from vidc.plugins.errors import UnavailableError
from vidc.runtime import load

bundle = load(sys.argv[1])
session = bundle.session()
session.prompt(torch.zeros(bundle.spec.batch, *bundle.spec.text))
session.step()
torch.zeros(1, device="cuda")[torch.tensor([7], device="cuda")]  # An assertion on the device.
try:
    for _ in range(3):
        session.fetch(session.step())()
except UnavailableError as error:
    print(error.code)
"""


def test_a_gpu_that_is_lost_in_the_midst_ends_with_a_code(built):
    ended = subprocess.run(
        [sys.executable, "-c", LOSE, str(built)], capture_output=True, text=True, timeout=120
    )
    assert ended.stdout.strip() == "VIDC-GPU-LOST", ended.stderr
