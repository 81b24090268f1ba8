"""Sessions on one bundle: streams of their own over shared engines."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.plugins.errors import GateError, UnavailableError, UsageError
from vidc.plugins.signature import Signature
from vidc.runtime import Bundle, load
from vidc.runtime.graphs import DirectRunner
from vidc.runtime.manifest import read_manifest, write_manifest


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


@pytest.fixture(params=["onnxruntime", "aoti"])
def opened(request, project, tmp_path):
    """The bundle by one backend and the other."""
    settings, sources = project.resolve(backend=request.param)
    built = whole(settings, sources).run(tmp_path / request.param, project.cache, LineProgress())
    with load(built.output) as loaded:
        yield loaded


def test_a_reset_session_is_as_new(opened, monkeypatch):
    expected = clip(opened, 8, 4, switch_after=2)
    session = opened.session(seed=7)
    session.prompt(embeds(opened, 3))
    for _ in range(5):
        session.step()
    monkeypatch.setattr(torch, "zeros", None)
    monkeypatch.setattr(DirectRunner, "prepare", None)
    session.reset(seed=8)
    assert (session.seed, session.blocks) == (8, 0)
    assert not session.latents.any()
    with pytest.raises(UsageError, match="VIDC-SESSION-NO-PROMPT"):
        session.step()
    assert torch.equal(play(session, opened, 4, switch_after=2), expected)


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


@pytest.mark.parametrize("lacking", ["text_kv", "kv_update", "recache_5", "vae_decode"])
def test_a_bundle_without_a_part_of_the_stream_is_not_loaded(project, tmp_path, lacking):
    document = read_manifest(project.bundle)
    assert lacking in document.engines
    engines = {name: engine for name, engine in document.engines.items() if name != lacking}
    error = refused(project, tmp_path, replace(document, engines=engines))
    assert lacking in error.message


def test_a_bundle_without_the_optional_parts_is_loaded(project, tmp_path):
    document = read_manifest(project.bundle)
    optional = ("vae_encode_first", "vae_encode", "text_encoder")
    engines = {name: e for name, e in document.engines.items() if name not in optional}
    folder = linked(project, tmp_path, replace(document, engines=engines))
    assert load(folder, verify="off").engines.keys() == engines.keys()


def test_engines_that_disagree_on_a_state_are_not_loaded(project, tmp_path):
    document = read_manifest(project.bundle)
    text = document.engines["text_kv"]
    other = Signature(
        tuple(replace(t, dtype="float16") if t.name == "text.k.0" else t for t in text.signature)
    )
    engines = {**document.engines, "text_kv": replace(text, signature=other)}
    error = refused(project, tmp_path, replace(document, engines=engines))
    assert "text.k.0" in error.message


def linked(project, folder, document):
    """The bundle under another manifest."""
    shutil.copytree(project.bundle, folder, dirs_exist_ok=True, copy_function=os.link)
    (folder / "manifest.json").unlink()
    write_manifest(document, folder)
    return folder


def test_flipped_weights_do_not_play(project, tmp_path):
    """A weights file of any size is hashed unless ``fast`` is asked for."""
    folder = tmp_path / "flipped"
    shutil.copytree(project.bundle, folder)
    weights = folder / "weights/transformer.safetensors"
    assert weights.stat().st_size < 2**20
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    with pytest.raises(GateError, match="VIDC-BUNDLE-ALTERED"):
        load(folder)


@pytest.mark.parametrize("verify", ["full", "fast"])
def test_code_and_graphs_are_hashed_whatever_their_size(project, tmp_path, monkeypatch, verify):
    folder = tmp_path / "swapped"
    shutil.copytree(project.bundle, folder)
    monkeypatch.setattr("vidc.runtime.integrity.FAST_LIMIT", 0)
    graph = folder / "denoise.onnx"
    data = graph.read_bytes()
    graph.write_bytes(data.replace(b"vidc", b"vidk") if b"vidc" in data else data[:-1] + b"x")
    with pytest.raises(GateError, match=r"VIDC-BUNDLE-ALTERED.*denoise\.onnx"):
        load(folder, verify=verify)


@pytest.mark.parametrize("name", ["integer_products", "torch_memory", "nothing", "__init__"])
def test_a_loader_that_is_none_is_refused(project, tmp_path, name):
    document = read_manifest(project.bundle)
    engines = {n: replace(e, loader=name) for n, e in document.engines.items()}
    with pytest.raises(UnavailableError, match="VIDC-ENGINE-LOADER"):
        load(linked(project, tmp_path, replace(document, engines=engines)))


def refused(project, folder, document):
    with pytest.raises(GateError, match="VIDC-BUNDLE-FIELD") as caught:
        load(linked(project, folder, document), verify="off")
    return caught.value


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
