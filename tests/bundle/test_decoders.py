"""Bundles with a TAEHV: in place of the Wan VAE, and beside it."""

import json
from collections import Counter

import onnx_ir
import pytest
import small_taehv
import taehv_oracle
import torch
from safetensors.torch import load_file, save_file

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.resolve import resolve
from vidc.compiler.validate.compare import compare_with_golden
from vidc.compiler.validate.gates import Where
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.play import Player
from vidc.plugins.errors import UsageError
from vidc.runtime import load
from vidc.runtime.engines import Wrapper
from vidc.runtime.manifest import read_manifest

SIZES = (*small_taehv.SIZES, "validate.blocks=3", "validate.switch_after=2")
DECODERS = ("taehv_decode_first", "taehv_decode")


@pytest.fixture(scope="module")
def make(project, taehv, tmp_path_factory):
    def made(kind):
        choices = [f"vae.kind={kind}", *SIZES]
        settings = resolve(str(project.preset), gpu="cpu", assignments=choices, environ={})
        parts = {"taehv": taehv}
        if kind == "both":
            parts["vae"] = project.pipeline / "vae"
        options = SourceOptions(project.pipeline / "transformer", parts)
        output = tmp_path_factory.mktemp("bundles") / kind
        whole(settings, options.resolve(settings.model)[1]).run(
            output, project.cache, LineProgress()
        )
        return output

    return made


@pytest.fixture(scope="module")
def alone(make):
    return make("taehv")


@pytest.fixture(scope="module")
def both(make):
    return make("both")


def stream(session, blocks=3):
    """The frames of a few blocks, and their latents."""
    generator = torch.Generator().manual_seed(3)
    session.prompt(torch.randn(session.spec.prompt_shape, generator=generator))
    frames, latents = [], []
    for _ in range(blocks):
        latents.append(session.generate())
        frames.append(session.decode(latents[-1]))
    return torch.cat(frames), torch.cat(latents, 1)


def expected(file, latents):
    weights = {name: tensor.float() for name, tensor in load_file(file).items()}
    return taehv_oracle.decode(weights, latents)[0].mul(255).permute(0, 2, 3, 1)


def test_a_decoder_for_a_cpu_writes_no_upsampled_image_before_its_frames(alone):
    (path,) = read_manifest(alone).engines["taehv_decode"].files
    operators = Counter(node.op_type for node in onnx_ir.load(alone / path).graph)
    assert (operators["Resize"], operators["DepthToSpace"]) == (2, 1)


def test_a_bundle_decodes_with_a_taehv_in_place_of_the_vae(alone, taehv, vidc):
    with load(alone) as bundle:
        assert set(DECODERS) < bundle.engines.keys()
        assert not [name for name in bundle.engines if name.startswith("vae_")]
        with bundle.session(seed=1) as session:
            frames, latents = stream(session)
    assert frames.shape == (33, 32, 48, 3)
    # Half a level of rounding to 8 bits, and a little for sums in another order.
    assert (frames - expected(taehv, latents)).abs().max() < 0.51
    found = json.loads(vidc("validate", str(alone), "--json")[1])
    assert found["passed"]
    errors = {row["component"]: row["relative_l2"] for row in found["components"]}
    assert errors.keys() >= {*DECODERS, "taehv_encode_first", "taehv_encode"}
    assert max(error for name, error in errors.items() if name.startswith("taehv")) < 1e-5
    assert all(row["psnr_db"] is None or row["psnr_db"] > 40 for row in found["rollout"])


class ForgetsMemory(Wrapper):
    """Engine that loses one of its memories after each call."""

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        states["taehv.decoder.cache.4"].zero_()


@pytest.mark.parametrize("kind", ["alone", "both"])
def test_a_lost_memory_fails_the_gates(request, kind):
    folder = request.getfixturevalue(kind)
    with load(folder) as bundle:
        engines = dict(bundle.engines)
        engines["taehv_decode"] = ForgetsMemory(engines["taehv_decode"])
        player = Player(bundle.program, bundle.resources).with_engines(engines)
        precisions = {n: e.precision for n, e in read_manifest(folder).engines.items()}
        comparison = compare_with_golden(Golden.load(folder), player, precisions)
    failed = {gate.where for gate in comparison.gates if not gate.passed}
    components = {gate.component for gate in comparison.gates if not gate.passed}
    assert "taehv_decode" in components
    # A rollout's frames come from the first decoder.
    assert (Where.PIXELS in failed) == (kind == "alone")


def test_a_session_picks_one_of_two_decoders(both, taehv, bundle):
    with load(both) as loaded:
        assert loaded.spec.decoders == ("vae", "taehv")
        with loaded.session(seed=1) as first, loaded.session(seed=1, decoder="taehv") as second:
            full, latents = stream(first)
            tiny, same = stream(second)
            # So a session has the states of its own decoder alone.
            assert not {*DECODERS} & {*first.spec.components}
            assert {*DECODERS} < {*second.spec.components}
            assert "vae_decode" not in second.spec.components
        with pytest.raises(UsageError) as caught:
            loaded.session(decoder="tahv")
    assert torch.equal(latents, same)
    assert (tiny - expected(taehv, same)).abs().max() < 0.51
    assert (full.float() - tiny.float()).abs().mean() > 10
    assert caught.value.code == "VIDC-SESSION-DECODER"
    assert "taehv" in caught.value.hint
    with pytest.raises(UsageError, match="no decoder 'taehv' to choose"):
        bundle.session(decoder="taehv")


def test_both_decoders_are_validated(both, vidc):
    found = json.loads(vidc("validate", str(both), "--json")[1])
    assert found["passed"]
    assert {row["component"] for row in found["components"]} >= {
        *DECODERS, "taehv_encode_first", "taehv_encode",
        "vae_decode_first", "vae_decode", "vae_encode_first", "vae_encode",
    }  # fmt: skip


def test_run_takes_the_name_of_a_decoder(both, vidc, tmp_path):
    embeds = tmp_path / "prompt.safetensors"
    spec = read_manifest(both).spec
    save_file({"embeds": torch.randn(spec.prompt_shape)}, embeds)
    videos = []
    for more in ((), ("--decoder", "vae"), ("--decoder", "taehv")):
        videos.append(tmp_path / f"{len(videos)}.gif")
        status, *_ = vidc("run", str(both), "--prompt-embeds", str(embeds), "--blocks", "2", *more,
             "-o", str(videos[-1]))  # fmt: skip
        assert status == 0
    default, full, tiny = (video.read_bytes() for video in videos)
    assert default == full != tiny


def test_bench_measures_the_decoder_of_this_name(both, vidc, tmp_path):
    quick = ("--samples", "1", "--warmup", "0", "--cold-starts", "1", "--against", "eager")
    report = ("--report", str(tmp_path / "bench.html"), "--profile", "--json")
    status, out, err = vidc("bench", str(both), "--decoder", "taehv", *quick, *report)
    assert status == 0, err
    found = json.loads(out)
    assert found["workload"]["decoder"] == "taehv"
    assert found["baselines"]["eager"]["vae_ms"]["n"] == found["metrics"]["vae_ms"]["n"] == 1
    measured = {row["component"] for row in found["profile"]["components"]}
    assert ("taehv_decode" in measured, "vae_decode" in measured) == (True, False)
    status, _, err = vidc("bench", str(both), "--decoder", "tahv", *quick)
    assert (status, "VIDC-SESSION-DECODER" in err) == (2, True)


@pytest.mark.parametrize(
    ("kind", "parts", "message", "hint"),
    [
        ("wan", ("vae", "taehv"), "--taehv is given, and the model's settings choose no TAEHV",
         "--set vae.kind=taehv, or both"),
        ("taehv", ("vae", "taehv"), "--vae is given, and the model's settings choose no VAE",
         "--set vae.kind=wan, or both"),
        ("taehv", (), "no TAEHV is given", "add --taehv FILE"),
        ("both", ("vae",), "no TAEHV is given", "add --taehv FILE"),
        ("both", ("taehv",), "no VAE is given", "add --vae FILE"),
    ],
)  # fmt: skip
def test_files_must_be_those_of_the_models_decoders(project, taehv, kind, parts, message, hint):
    settings = resolve(
        str(project.preset), gpu="cpu", assignments=[f"vae.kind={kind}", *SIZES], environ={}
    )
    files = {"vae": project.pipeline / "vae", "taehv": taehv}
    given = {name: files[name] for name in parts}
    with pytest.raises(UsageError) as caught:
        SourceOptions(project.pipeline / "transformer", given).resolve(settings.model)
    assert caught.value.code == "VIDC-BUILD-SOURCES"
    assert message in caught.value.message
    assert hint in caught.value.hint
