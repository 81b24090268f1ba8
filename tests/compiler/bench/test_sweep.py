import math
from types import SimpleNamespace

import pytest

from vidc.compiler.bench.sweep import Change, Dimension, variant_settings
from vidc.compiler.bench.text import change
from vidc.compiler.config.resolve import resolve
from vidc.exporters.families.causal_video import CausalVideo
from vidc.plugins.errors import UsageError, VidcError


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("window=6,9,12", "stream.window", ("6", "9", "12")),
        ("stream.window = 6, 9", "stream.window", ("6", "9")),
        ("sampler.steps=[1000,500],[1000, 750, 250]", "sampler.steps",
         ("[1000,500]", "[1000, 750, 250]")),
        ("steps=[1000]", "sampler.steps", ("[1000]",)),
        ("precision=fp32,bf16,fp32", "precision.default", ("fp32", "bf16")),
        ("precision.vae=bf16", "precision.vae", ("bf16",)),
    ],
)  # fmt: skip
def test_dimensions(text, key, values):
    assert Dimension.parse(text, CausalVideo) == Dimension(key, values)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("window", "VIDC-BENCH-SWEEP"),
        ("window=", "VIDC-BENCH-SWEEP"),
        ("window=6,,9", "VIDC-BENCH-SWEEP"),
        ("windw=6", "VIDC-CONFIG-SETTING"),
        ("stream=6", "VIDC-CONFIG-SETTING"),
    ],
)
def test_rejects_invalid_sweep(text, code):
    with pytest.raises(UsageError) as error:
        Dimension.parse(text, CausalVideo)
    assert error.value.code == code


def built(*assignments, **flags):
    settings = resolve("tiny", gpu="cpu", backend="aoti", environ={}, assignments=assignments,
                       **flags)  # fmt: skip
    target = SimpleNamespace(name=settings.target.name)
    manifest = SimpleNamespace(
        config=settings.to_json(), preset="tiny", family=settings.family, target=target
    )
    return settings, manifest


def test_a_variant_differs_in_one_setting():
    settings, manifest = built("stream.sink=2", "model.heads=4", precision="bf16")
    variant = variant_settings(manifest, "stream.window", "9")
    assert variant.model.stream.window == 9
    expected = settings.to_json()
    expected["stream"]["window"] = 9
    assert variant.to_json() == expected


def test_a_variant_of_another_precision_differs_in_all_groups():
    _, manifest = built(precision="bf16")
    variant = variant_settings(manifest, "precision.default", "fp32")
    assert set(variant.precision.values()) == {"fp32"}
    variant = variant_settings(manifest, "precision.vae", "fp32")
    assert (variant.precision["transformer"], variant.precision["vae"]) == ("bf16", "fp32")


def test_a_preset_named_like_a_path_writes_no_file_there(tmp_path):
    _, manifest = built()
    (tmp_path / "other.toml").write_text("kept")
    manifest.preset = str(tmp_path / "other")
    variant_settings(manifest, "stream.window", "9")
    assert (tmp_path / "other.toml").read_text() == "kept"


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("stream.window", "4", "VIDC-CONFIG-SIZES"),
        ("stream.window", "wide", "VIDC-CONFIG-SETTING"),
        ("precision.default", "fp9", "VIDC-CONFIG-PRECISION"),
        ("precision.default", "fp8", "VIDC-RECIPE-NONE"),
    ],
)
def test_a_variant_that_cannot_be_is_refused(key, value, code):
    _, manifest = built()
    with pytest.raises(VidcError) as error:
        variant_settings(manifest, key, value)
    assert error.value.code == code


def test_changes_read_well():
    assert change(Change(0.0, math.inf, 1.0)) == ("0.00e+00", "∞", "1.0000")
    assert change(Change(0.14501, 28.44, 0.95083)) == ("1.45e-01", "28.4", "0.9508")
    assert change(None) == ("", "", "")
    assert Change(0.0, math.inf, 1.0).to_json()["psnr_db"] is None
