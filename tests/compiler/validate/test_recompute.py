"""Golden data made again: what is demanded, what is shown, and what a full disk gives."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vidc.compiler.build import recompute as module
from vidc.compiler.build.load import Load
from vidc.compiler.build.recompute import recompute
from vidc.compiler.build.sources import Sources
from vidc.compiler.config.schema import ValidateConfig
from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.errors import BuildError, UsageError

SCENARIO = Scenario(blocks=2, switch_after=1, rollout=False)
OWN = SimpleNamespace(scenario=SCENARIO, eager="own", eager_rollout="rollout")
"""What a bundle holds, as far as it is looked at."""


@pytest.fixture
def manifest(model):
    precision = {"transformer": "fp32", "vae": "fp32", "text_encoder": "fp32"}
    validate = {"family": "causal_video", "validate": ValidateConfig().to_json()}
    return SimpleNamespace(
        name="tiny",
        config={**model.config.to_json(), **validate, "precision": precision},
        target=SimpleNamespace(device_type="cpu"),
        engines={"denoise": SimpleNamespace(precision="fp32")},
    )


def test_the_same_weights_give_the_same_reference(model, manifest, tmp_path, capsys):
    found = recompute(manifest, Sources({}, seed=1), OWN, lambda _: None)
    expected = model.golden(tmp_path, SCENARIO).reference.to_tensors()
    for name, value in found.reference.to_tensors().items():
        assert torch.equal(value, expected[name]), name
    assert found.eager is None
    assert capsys.readouterr().out == ""


def test_a_quantized_bundle_keeps_what_pytorch_made_of_its_recipe(manifest):
    manifest.engines["denoise"].precision = "int8"
    found = recompute(manifest, Sources({}, seed=1), OWN, lambda _: None)
    assert (found.eager, found.eager_rollout) == ("own", "rollout")
    assert found.reference.calls


@pytest.mark.parametrize(
    "sources", [Sources({}, seed=1), Sources({"transformer": Path("t"), "vae": Path("v")})]
)
def test_a_text_encoder_needs_its_checkpoint(manifest, sources):
    manifest.config["text_encoder"] = {
        "vocab_size": 64, "d_model": 20, "d_kv": 10, "d_ff": 24, "num_heads": 2, "num_layers": 1,
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"VIDC-BUILD-SOURCES.*text encoder"):
        recompute(manifest, sources, OWN, lambda _: None)


def test_a_full_disk_is_named(manifest, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Load, "run", full)
    with pytest.raises(BuildError, match="VIDC-BUILD-DISK") as error:
        recompute(manifest, Sources({}, seed=1), OWN, lambda _: None)
    assert "TMPDIR" in error.value.hint


def test_no_place_for_temporary_files_is_named(manifest, monkeypatch):
    monkeypatch.setattr(module.tempfile, "tempdir", "/nowhere")
    with pytest.raises(BuildError, match="VIDC-BUILD-DISK"):
        recompute(manifest, Sources({}, seed=1), OWN, lambda _: None)
