"""`vidc calibrate` from end to end, on the smallest preset."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from modelopt_here import needs_modelopt
from safetensors.torch import load_file, save_file

from vidc.compiler.build import calibrate as calibrating
from vidc.compiler.build import calibrate_command as running
from vidc.compiler.build import calibration_recording as recording
from vidc.compiler.build.calibrate_command import calibrate
from vidc.compiler.build.calibration_prompts import default_prompts
from vidc.compiler.build.sources import Sources
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.artifact import read_calibration
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.sources import versions
from vidc.plugins.errors import GateError, UnavailableError, UsageError

pytestmark = needs_modelopt
SOURCES = Sources({}, seed=1)


class Noted:
    """Progress that is remembered, and interrupts behind the prompt of this number."""

    def __init__(self, interrupt_after=None):
        self.prompts = []
        self.hits = {}
        self._interrupt_after = interrupt_after

    def started(self, stage):
        pass

    def finished(self, stage, hit, seconds):
        self.hits[stage] = hit

    def note(self, text):
        if text.startswith("prompt"):
            self.prompts.append(text.partition(":")[0])
        if text.startswith(f"prompt {self._interrupt_after}/"):
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def settings():
    return resolve("tiny", gpu="cpu", environ={})


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def prompts(settings):
    return default_prompts(program_spec(settings.model), 3, texts=False)


@pytest.fixture(scope="module")
def whole(settings, prompts, cache, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "calibration"
    calibrate(settings, SOURCES, prompts, 0, output, cache, Noted())
    return output


def same(one, two):
    return all(
        (one / name).read_bytes() == (two / name).read_bytes() for name in (DOCUMENT, TENSORS)
    )


def test_a_calibration_says_what_it_is(settings, prompts, whole):
    found = read_calibration(whole, settings.model)
    document = found.document
    assert sorted(path.name for path in whole.parent.iterdir()) == ["calibration"]
    assert (document.precision, document.device, document.seed) == ("fp32", "cpu", 0)
    assert vars(document.prompts) == {
        "kind": "synthetic", "count": 3, "sha256": prompts.sha256, "texts": (),
    }  # fmt: skip
    assert vars(document.recipe) == {"method": "max", "blocks": 6, "switch_after": 5}
    assert document.versions.keys() == {"torch", "nvidia-modelopt", "vidc"}
    assert document.source["random_weights"] == 1
    found.require_fits(settings.model, document.weights)


def test_a_second_run_finds_the_ranges(settings, prompts, whole, cache, tmp_path):
    noted = Noted()
    calibrate(settings, SOURCES, prompts, 0, tmp_path / "again", cache, noted)
    assert noted.hits == {"load:transformer": True, "calibrate:transformer": True}
    assert same(tmp_path / "again", whole)


def test_an_interrupted_run_goes_on_and_gives_the_same_bytes(settings, prompts, whole, tmp_path):
    output, cache = tmp_path / "calibration", tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        calibrate(settings, SOURCES, prompts, 0, output, cache, Noted(interrupt_after=2))
    assert not output.exists()
    noted = Noted()
    calibrate(settings, SOURCES, prompts, 0, output, cache, noted)
    assert noted.prompts == ["prompts 1 to 2 of 3", "prompt 3/3"]
    assert same(output, whole)
    assert list((cache / ".kept" / "calibrate").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "calibration"]


@pytest.mark.parametrize("damage", ["other seed", "other prompts", "truncated", "no tensors"])
def test_what_belongs_to_another_run_is_not_taken_up(settings, prompts, whole, tmp_path, damage):
    output, cache = tmp_path / "calibration", tmp_path / "cache"
    first, seed = prompts, 0
    if damage == "other seed":
        seed = 1
    if damage == "other prompts":
        first = replace(prompts, embeddings=prompts.embeddings + 1)
    with pytest.raises(KeyboardInterrupt):
        calibrate(settings, SOURCES, first, seed, output, cache, Noted(interrupt_after=1))
    (left,) = (cache / ".kept" / "calibrate").iterdir()
    if damage == "truncated":
        left.write_bytes(left.read_bytes()[:-1])
    if damage == "no tensors":
        left.write_bytes(b"")
    noted = Noted()
    calibrate(settings, SOURCES, prompts, 0, output, cache, noted)
    assert noted.prompts == ["prompt 1/3", "prompt 2/3", "prompt 3/3"]
    assert same(output, whole)


def test_the_seed_and_the_prompts_count(settings, prompts, whole, cache, tmp_path):
    one = replace(prompts, embeddings=prompts.embeddings[:1])
    calibrate(settings, SOURCES, one, 0, tmp_path / "one", cache, Noted())
    few, all_ = (load_file(folder / TENSORS) for folder in (tmp_path / "one", whole))
    assert few.keys() == all_.keys()
    inputs = [name for name in few if name.endswith((".input", ".weight"))]
    # Its prompt is switched to itself: what text_kv sees is a part of what all of them show it.
    name = "blocks.0.attn2.to_k.input"
    assert (few[name] <= all_[name]).all()
    assert any(not torch.equal(few[name], all_[name]) for name in inputs)
    assert torch.equal(few["proj_out.weight"], all_["proj_out.weight"])


def test_weights_are_known_in_any_precision_and_no_others_are(
    settings, prompts, whole, cache, tmp_path
):
    one = replace(prompts, embeddings=prompts.embeddings[:1])
    bf16 = resolve("tiny", gpu="cpu", precision="bf16", environ={}, engines=False)
    done = calibrate(bf16, SOURCES, one, 0, tmp_path / "bf16", cache, Noted())
    found = read_calibration(whole, settings.model)
    assert done.document.precision == "bf16"
    found.require_fits(bf16.model, done.document.weights)
    other = calibrate(settings, Sources({}, seed=2), one, 0, tmp_path / "two", cache, Noted())
    with pytest.raises(UsageError, match="VIDC-CALIBRATION-FOREIGN"):
        found.require_fits(settings.model, other.document.weights)


def test_an_older_calibration_is_replaced_and_nothing_else(
    settings, prompts, cache, whole, tmp_path
):
    one = replace(prompts, embeddings=prompts.embeddings[:1])
    output = tmp_path / "calibration"
    output.mkdir()
    (output / "mine").touch()
    with pytest.raises(UsageError, match="VIDC-BUILD-OUTPUT"):
        calibrate(settings, SOURCES, one, 0, output, cache, Noted())
    (output / "mine").rename(output / DOCUMENT)
    (output / "notes").touch()
    with pytest.raises(UsageError, match=r"VIDC-BUILD-OUTPUT.*notes"):
        calibrate(settings, SOURCES, one, 0, output, cache, Noted())
    (output / "notes").unlink()
    calibrate(settings, SOURCES, one, 0, output, cache, Noted())
    assert sorted(path.name for path in output.iterdir()) == [DOCUMENT, TENSORS]
    link = tmp_path / "link"
    link.symlink_to(output)
    before = (output / DOCUMENT).stat().st_ino
    calibrate(settings, SOURCES, one, 0, link, cache, Noted())
    assert link.is_symlink()
    assert (output / DOCUMENT).stat().st_ino != before


def test_ranges_that_are_refused_are_not_published(settings, prompts, cache, tmp_path, monkeypatch):
    one = replace(prompts, embeddings=prompts.embeddings[:1])

    def zeros(ranges):
        return {name: torch.zeros(2, 3) for name in ("blocks.0.attn1.q",)}

    monkeypatch.setattr(recording, "finished", zeros)
    with pytest.raises(GateError, match=r"VIDC-CALIBRATION-ZERO.*blocks\.0\.attn1\.q"):
        calibrate(settings, SOURCES, one, 5, tmp_path / "calibration", cache, Noted())
    assert not (tmp_path / "calibration").exists()


def test_a_gpu_that_is_not_here(settings, prompts, cache, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    elsewhere = resolve("tiny", gpu="h100", precision="bf16", environ={}, engines=False)
    with pytest.raises(UnavailableError, match="VIDC-CALIBRATE-GPU"):
        calibrate(elsewhere, SOURCES, prompts, 0, tmp_path / "calibration", cache, Noted())


def test_without_modelopt_it_says_what_to_install(settings, prompts, cache, tmp_path, monkeypatch):
    def missing(*packages, extra="build"):
        return versions("no-such-modelopt", extra=extra)

    monkeypatch.setattr(calibrating, "versions", missing)
    with pytest.raises(UnavailableError, match=r"VIDC-ENV-BUILD(.|\n)*\[calibrate\]"):
        calibrate(settings, SOURCES, prompts, 0, tmp_path / "calibration", cache, Noted())


def test_what_takes_minutes_is_announced(vidc, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(cache))

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "calibrate", stop)
    common = ("--gpu", "cpu", "--random-weights", "1", "-o", str(tmp_path / "out"))
    status, _, err = vidc("calibrate", "longlive-1.3b", *common)
    assert status == 130
    assert err.startswith("32 rollouts: about ")
    status, _, err = vidc("calibrate", "tiny", *common)
    assert (status, err.strip()) == (130, "interrupted")


def test_the_command(vidc, cache, stream, tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(cache))
    file, output = tmp_path / "prompts.safetensors", tmp_path / "out"
    save_file({"prompts": torch.randn(4, *stream.text)}, file)
    arguments = (
        "calibrate",
        "tiny",
        "--gpu",
        "cpu",
        "--random-weights",
        "1",
        "--prompts",
        str(file),
    )
    status, out, err = vidc(*arguments, "-n", "2", "-o", str(output), "--json")
    assert status == 0, err
    document = json.loads(out)
    assert (document["schema"], document["calibration"]) == (1, str(output))
    assert document["prompts"]["count"] == 2
    assert len(document["groups"]) == 6
    lines = [line.partition(":")[0] for line in err.splitlines()]
    assert lines == ["load", "transformer", "prompt 1/2", "prompt 2/2", "calibrate"]
    (tmp_path / "none.txt").touch()
    status, out, err = vidc(*arguments[:-1], str(tmp_path / "none.json"), "-o", str(output))
    assert (status, out) == (2, "")
    assert "[VIDC-CALIBRATE-PROMPTS]" in err
