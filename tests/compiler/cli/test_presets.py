"""Presets in a precision to come are refused, with the backends as they are."""

import pytest

from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets


@pytest.mark.parametrize(
    ("preset", "precision", "way_out"),
    [
        ("speed", "int8", "--set precision.kv_cache=bf16"),
        ("low_memory", "int8", "--set precision.kv_cache=bf16"),
    ],
)
@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_it_says_what_is_missing_and_a_way_out(vidc, tmp_path, gpu, preset, precision, way_out):
    command = ("build", preset, "--gpu", gpu, "--random-weights", "1", "-o", str(tmp_path / "out"))
    status, out, err = vidc(*command)
    assert (status, out) == (3, "")
    assert f"{precision} (preset " in err
    assert way_out in err
    assert not list(tmp_path.iterdir())
    # The way out leads somewhere.
    status, _, err = vidc(*command, *way_out.split(), "--plan")
    assert status == 0, err


FP8 = [name for name, target in targets().items() if target.recipes.fp8]


@pytest.mark.parametrize("preset", ["turbo_fp8", "ultra"])
@pytest.mark.parametrize("gpu", FP8)
def test_presets_in_fp8_say_how_to_calibrate(vidc, tmp_path, gpu, preset):
    command = ("build", preset, "--gpu", gpu, "--random-weights", "1", "-o", str(tmp_path / "out"))
    status, _, err = vidc(*command)
    assert status == 2
    assert "VIDC-CALIBRATION-NEEDED" in err
    assert f"vidc calibrate {preset} --random-weights 1 --precision bf16, then" in err
    # What it says to run is in a precision that is exported.
    found = resolve(preset, gpu="cpu", precision="bf16", environ={}, engines=False)
    assert found.precision["transformer"] == "bf16"
    status, _, err = vidc(*command, "--precision", "bf16", "--plan")
    assert status == 0, err


PRESETS = ["turbo_fp8", "ultra", "speed", "low_memory"]
ELSEWHERE = [
    (preset, gpu)
    for preset in PRESETS
    for gpu in targets()
    if preset in PRESETS[2:] or gpu not in FP8
]


@pytest.mark.parametrize(("preset", "gpu"), ELSEWHERE)
def test_no_target_takes_another_precision_in_its_place(vidc, tmp_path, gpu, preset):
    command = ("build", preset, "--gpu", gpu, "--random-weights", "1", "-o", str(tmp_path / "out"))
    status, _, err = vidc(*command)
    assert status == 3
    assert not list(tmp_path.iterdir()), err
