"""Sessions on one bundle: streams of their own over shared engines."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from signing_keys import key_pair

from vidc.compiler.build.build import whole
from vidc.compiler.build.sign import sign_bundle
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sign import command as sign
from vidc.compiler.cli.validate import command as validate
from vidc.compiler.doctor.probes import Status
from vidc.compiler.doctor.trial import try_bundle
from vidc.compiler.store.publish import replacing
from vidc.plugins.errors import GateError, UnavailableError, UsageError
from vidc.plugins.signature import Signature
from vidc.runtime import Bundle, load
from vidc.runtime.graphs import Runner
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import read_manifest, write_manifest
from vidc.runtime.record import RECORD_NAME, Record


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


@pytest.mark.parametrize("backend", ["onnxruntime", "aoti"])
def test_a_bundle_loads_and_plays_whatever_the_callers_torch_state(project, tmp_path, backend):
    settings, sources = project.resolve(backend=backend)
    built = whole(settings, sources).run(tmp_path / "bundle", project.cache, LineProgress()).output
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
        torch.autocast("cpu", torch.bfloat16),
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


def swapped(document, component, one, other):
    """Names two states of an engine's signature by each other's name."""
    names = {one: other, other: one}
    for tensor in document["engines"][component]["signature"]:
        tensor["name"] = names.get(tensor["name"], tensor["name"])


EDITS = {
    "sigma": (lambda d: d["spec"]["sigmas"].__setitem__(1, 0.93), "RECORD"),
    "timestep": (lambda d: d["spec"]["timesteps"].__setitem__(1, 937.0), "RECORD"),
    "context": (lambda d: d["spec"].update(context_timestep=1.0), "RECORD"),
    "sink": (lambda d: d["spec"].update(sink=d["spec"]["sink"] - 1), "RECORD"),
    "grid": (lambda d: d["spec"]["grid"].reverse(), "FIELD"),
    "head": (lambda d: d["spec"].update(head_dim=22), "FIELD"),
    "window": (lambda d: d["spec"].update(window=11), "FIELD"),
    "level": (
        lambda d: d["engines"]["denoise"]["options"].update(
            graph_optimization_level="ORT_DISABLE_ALL"
        ),
        "RECORD",
    ),
    "swap": (lambda d: swapped(d, "denoise", "ring.k.0", "ring.v.0"), "RECORD"),
    "weights": (lambda d: d["weights"].update(transformer=d["weights"]["vae"]), "RECORD"),
    "not passed": (lambda d: d["validation"].update(passed=False), "RECORD"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_manifest_does_not_play(project, tmp_path, edit):
    """Each of these played other frames, or would."""
    change, code = EDITS[edit]
    document = json.loads((project.bundle / "manifest.json").read_text())
    change(document)
    folder = linked(project, tmp_path, read_manifest(project.bundle))
    (folder / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(GateError, match=f"VIDC-BUNDLE-{code}"):
        load(folder)


def test_a_bundle_that_did_not_pass_is_not_loaded(project, tmp_path):
    document = read_manifest(project.bundle)
    folder = linked(project, tmp_path, document)
    failed = replace(document, validation=replace(document.validation, passed=False))
    (folder / RECORD_NAME).unlink()
    Record.of(failed).write(folder)
    files = {**document.files, RECORD_NAME: file_entry(folder / RECORD_NAME)}
    write_manifest(replace(failed, files=files), folder)
    with pytest.raises(GateError, match="VIDC-BUNDLE-UNVALIDATED"):
        load(folder)


def test_a_bundle_of_another_digest_or_without_a_signature_is_not_loaded(project, tmp_path):
    document = read_manifest(project.bundle)
    load(project.bundle, digest=document.digest.upper()).close()
    with pytest.raises(GateError, match="VIDC-TRUST-DIGEST"):
        load(project.bundle, digest="0" * 64)
    for verify in ("fast", "off"):
        with pytest.raises(UsageError, match="VIDC-TRUST-VERIFY"):
            load(project.bundle, verify, digest=document.digest)


def test_a_signed_bundle_is_trusted_by_its_makers_key(project, tmp_path):
    pytest.importorskip("cryptography")
    folder = linked(project, tmp_path / "signed", read_manifest(project.bundle))
    private, public = key_pair(tmp_path, "maker")
    with pytest.raises(GateError, match="VIDC-TRUST-UNSIGNED"):
        load(folder, trust=public)
    done = CliRunner().invoke(sign, [str(folder), "--key", str(private)])
    assert done.stdout == f"{read_manifest(project.bundle).digest}\n"
    load(folder, trust=public).close()
    load(folder).close()
    done = CliRunner().invoke(validate, [str(folder), "--trust", str(key_pair(tmp_path, "b")[1])])
    assert done.exception.code == "VIDC-TRUST-SIGNER"


def test_a_bundle_that_is_damaged_is_not_signed(project, tmp_path):
    pytest.importorskip("cryptography")
    folder = tmp_path / "damaged"
    shutil.copytree(project.bundle, folder)
    (folder / "report.html").write_text("")
    with pytest.raises(GateError, match="VIDC-BUNDLE-TRUNCATED"):
        sign_bundle(folder, key_pair(tmp_path, "maker")[0])
    assert read_manifest(folder).signature is None


def test_a_bundle_is_tried_in_a_process_of_its_own(project):
    assert try_bundle(project.bundle).status is Status.GOOD


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
