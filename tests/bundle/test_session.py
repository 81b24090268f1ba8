"""Sessions on one bundle: streams of their own over shared engines."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import small_taehv
import torch

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.store.publish import replacing
from vidc.plugins.errors import UnavailableError, UsageError
from vidc.runtime import Bundle, load
from vidc.runtime.graphs import Runner


def embeds(bundle, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(bundle.spec.batch, *bundle.spec.text, generator=generator)


def clip(bundle, seed: int, blocks: int, switch_after: int | None = None) -> torch.Tensor:
    return play(bundle.session(seed=seed), bundle, blocks, switch_after)


def play(session, bundle, blocks: int, switch_after: int | None = None) -> torch.Tensor:
    session.prompt(embeds(bundle, 1))
    frames = []
    for block in range(blocks):
        if block == switch_after:
            session.switch_prompt(embeds(bundle, 2))
        frames.append(session.step())
    return torch.cat(frames)


TEXT_LIBRARIES = """
import sys
from vidc.runtime import load

def loaded():
    return sorted({"ftfy", "tokenizers"} & set(sys.modules))

session = load(sys.argv[1]).session()
assert loaded() == [], loaded()
session.prompt("a cat")
assert loaded() == ["ftfy", "tokenizers"], loaded()
"""


def test_libraries_for_text_load_at_the_first_text(project):
    subprocess.run([sys.executable, "-c", TEXT_LIBRARIES, project.bundle], check=True, timeout=120)


def test_frames(bundle):
    session = bundle.session()
    session.prompt(embeds(bundle, 1))
    shapes = [tuple(frames.shape) for frames in session.stream(blocks=2)]
    height, width = bundle.spec.video
    assert shapes == [(9, height, width, 3), (12, height, width, 3)]
    assert session.latents.shape == (1, 3, *bundle.spec.latent)


def test_fetched_frames_are_the_callers_to_keep(bundle):
    session = bundle.session(seed=3)
    session.prompt(embeds(bundle, 1))
    waits = [session.fetch(session.step()) for _ in range(2)]
    fetched = [wait() for wait in waits]
    assert torch.equal(torch.cat(fetched), clip(bundle, seed=3, blocks=2))
    assert all(frames.device.type == "cpu" for frames in fetched)


def test_a_cpu_bundle_needs_no_memory_of_a_gpu(bundle):
    bundle.session()
    assert bundle.working_bytes() == 0


def test_latents_stay_what_they_were(bundle):
    session = bundle.session(seed=2)
    session.prompt(embeds(bundle, 1))
    session.step()
    first = session.latents
    kept = first.clone()
    session.step()
    assert torch.equal(first, kept)
    session.latents.zero_()
    assert session.latents.any()


def test_a_switch_is_a_prompt_too(bundle):
    spec, session = bundle.spec, bundle.session()
    session.remember(torch.zeros(spec.batch, spec.block, *spec.latent))
    session.switch_prompt(embeds(bundle, 1))
    assert session.generate().isfinite().all()


def test_a_stream_depends_on_its_seed_alone(bundle):
    assert torch.equal(clip(bundle, 7, 3), clip(bundle, 7, 3))
    assert not torch.equal(clip(bundle, 7, 3), clip(bundle, 8, 3))


@pytest.fixture(scope="module", params=["onnxruntime", "aoti"])
def built(request, project, taehv, tmp_path_factory):
    """A bundle of each backend, with the small decoder where the large one takes minutes."""
    if request.param == "onnxruntime":
        return project.bundle
    choices = ("vae.kind=taehv", *small_taehv.SIZES)
    settings, sources = project.resolve(*choices, parts={"taehv": taehv}, backend="aoti")
    output = tmp_path_factory.mktemp("aoti") / "bundle"
    return whole(settings, sources).run(output, project.cache, LineProgress()).output


@pytest.fixture
def opened(built):
    with load(built) as loaded:
        yield loaded


def test_a_reset_session_is_as_new(opened, monkeypatch):
    expected = clip(opened, 8, 4, switch_after=2)
    session = opened.session(seed=7)
    session.prompt(embeds(opened, 3))
    for _ in range(5):
        session.step()
    monkeypatch.setattr(torch, "zeros", None)
    monkeypatch.setattr(Runner, "prepare", None)
    session.reset(seed=8)
    assert (session.seed, session.blocks) == (8, 0)
    assert not session.latents.any()
    with pytest.raises(UsageError, match="VIDC-SESSION-NO-PROMPT"):
        session.step()
    assert torch.equal(play(session, opened, 4, switch_after=2), expected)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@contextmanager
def matmuls_in_bfloat16():
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


def test_a_bundle_loads_and_plays_whatever_the_callers_torch_state(built):
    with load(built) as opened:
        first, second = embeds(opened, 1), embeds(opened, 2)

    def frames(session):
        session.prompt(first)
        found = [*session.stream(blocks=2)]
        session.switch_prompt(second)
        return torch.cat([*found, session.step()])

    with load(built) as opened:
        expected = frames(opened.session(seed=4))
    with (
        default_dtype(torch.bfloat16), torch.device("meta"), torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16), matmuls_in_bfloat16(),
    ):  # fmt: skip
        inside = load(built)
        session = inside.session(seed=4)
        found = frames(session)
    assert torch.equal(found, expected)
    session.reset(seed=4)
    assert torch.equal(frames(session), expected)
    inside.close()


FORK = """
import os, sys, torch
from vidc.runtime import UnavailableError, load

def use(bundle):
    session = bundle.session(seed=1)
    session.prompt(torch.zeros(bundle.spec.prompt_shape))
    session.step()

bundle = load(sys.argv[1])
use(bundle)
if (child := os.fork()) == 0:
    for act in (lambda: use(bundle), lambda: load(sys.argv[1])):
        try:
            act()
        except UnavailableError as error:
            assert error.code == "VIDC-SESSION-FORK", error
            continue
        os._exit(1)
    bundle.close()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_is_forked_after_use_does_not_hang(project):
    """The pools of threads that it waited for were its parent's."""
    environ = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", FORK, project.bundle]
    subprocess.run(command, check=True, timeout=120, env=environ)


def test_a_closed_session_refuses_every_call(bundle):
    with bundle.session() as session:
        session.prompt(embeds(bundle, 1))
        frames, latent = session.step(), session.latents
    calls = {
        "prompt": lambda: session.prompt(embeds(bundle, 1)),
        "switch_prompt": lambda: session.switch_prompt(embeds(bundle, 1)),
        "embeds": lambda: session.embeds("a red square"),
        "step": session.step,
        "generate": session.generate,
        "decode": lambda: session.decode(latent),
        "stream": lambda: next(session.stream(blocks=1)),
        "fetch": lambda: session.fetch(frames),
        "remember": lambda: session.remember(latent),
        "latents": lambda: session.latents,
        "reset": session.reset,
    }
    for name, call in calls.items():
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code == "VIDC-SESSION-CLOSED", name
    session.close()


def test_sessions_do_not_disturb_each_other(bundle):
    alone = [clip(bundle, seed, 4, switch_after=2) for seed in (1, 2)]
    sessions = [bundle.session(seed=seed) for seed in (1, 2)]
    for session in sessions:
        session.prompt(embeds(bundle, 1))
    together = [[], []]
    for block in range(4):
        for session, frames in zip(sessions, together, strict=True):
            if block == 2:
                session.switch_prompt(embeds(bundle, 2))
            frames.append(session.step())
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, torch.cat(other))


def test_explicit_noise_is_what_the_seed_draws(bundle):
    from vidc.runtime.noise import block_noise

    drawn, given = bundle.session(seed=3), bundle.session(seed=99)
    spec = bundle.spec
    for session in (drawn, given):
        session.prompt(embeds(bundle, 1))
    for block in range(2):
        noise = block_noise(3, block, len(spec.sigmas), (1, spec.block, *spec.latent))
        assert torch.equal(drawn.step(), given.step(noise))


def test_a_switch_changes_what_follows(bundle):
    plain, switched = clip(bundle, 5, 3), clip(bundle, 5, 3, switch_after=2)
    assert torch.equal(plain[:21], switched[:21])
    assert (plain[21:].float() - switched[21:].float()).abs().mean() > 5


def test_switching_to_the_same_prompt_early_changes_nothing(bundle):
    """Recomputing one block under the prompt it was made with gives the same keys and values."""
    plain, again = bundle.session(seed=5), bundle.session(seed=5)
    for session in (plain, again):
        session.prompt(embeds(bundle, 1))
        session.step()
    again.switch_prompt(embeds(bundle, 1))
    assert torch.equal(plain.step(), again.step())


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda session, ok: session.step(), "VIDC-SESSION-NO-PROMPT"),
        (lambda session, ok: session.prompt(ok[:, :-1]), "VIDC-PROMPT-SHAPE"),
        (lambda session, ok: session.prompt(ok.long()), "VIDC-PROMPT-SHAPE"),
        (lambda session, ok: (session.prompt(ok), session.step(ok)), "VIDC-SESSION-NOISE"),
    ],
)
def test_misuse_is_refused(bundle, act, code):
    with pytest.raises(UsageError, match=code):
        act(bundle.session(), embeds(bundle, 1))


def test_a_text_is_a_prompt(bundle):
    clips = []
    for text in ("a cat runs over the grass", "a cat  runs over the grass ", "rain at night"):
        session = bundle.session(seed=1)
        session.prompt(text)
        clips.append(session.step().float())
    assert torch.equal(clips[0], clips[1])
    assert (clips[0] - clips[2]).abs().mean() > 5


def test_a_text_needs_an_encoder(bundle):
    without = Bundle(bundle.program, replace(bundle.resources, shared=None))
    with pytest.raises(UsageError, match="VIDC-PROMPT-NO-ENCODER"):
        without.session().prompt("a red square")


def test_a_bundle_that_is_published_again_does_not_disturb_a_session(project, tmp_path):
    """A live session keeps its files: they are another folder's now."""
    folder = tmp_path / "live"
    shutil.copytree(project.bundle, folder)
    with load(folder) as opened:
        session = opened.session(seed=3)
        first = play(session, opened, 2)
        with replacing(folder, "package") as staging:
            (staging / "manifest.json").write_text("{}")
        assert [path.name for path in folder.iterdir()] == ["manifest.json"]
        session.reset(seed=3)
        assert torch.equal(play(session, opened, 2), first)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of it"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("unsupported memory format"), False),
    ],
)
def test_states_that_do_not_fit(bundle, monkeypatch, error, is_memory):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(torch, "zeros", fail)
    with pytest.raises(UnavailableError if is_memory else RuntimeError) as caught:
        bundle.session()
    assert not is_memory or caught.value.code == "VIDC-SESSION-MEMORY"


def test_torch_still_says_so_when_memory_is_out():
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        torch.empty(2**55)
