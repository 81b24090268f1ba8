"""Every shipped preset plans a build for every target, or is refused with a code."""

import pytest

from vidc.compiler.config.presets import preset_names
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.plugins.errors import UnavailableError

FP8 = [name for name, target in targets().items() if target.recipes.fp8]
HOPPER = ("h100", "h200")
QUANTIZED = {
    "turbo_fp8": FP8,
    "ultra": FP8,
    "speed": tuple(targets()),
    "low_memory": tuple(targets()),
}
"""The targets that each preset in 8 bits builds for, with a calibration."""


@pytest.fixture
def plan(vidc, tmp_path, monkeypatch):
    """Plans a build of random weights, and leaves nothing behind but the cache."""
    monkeypatch.setenv("VIDC_CACHE", str(tmp_path / "cache"))
    output = tmp_path / "out" / "bundle"

    def run(preset, gpu, *more):
        found = vidc(
            "build", preset, "--gpu", gpu, "--random-weights", "1", "-o", str(output), "--plan",
            *more,
        )  # fmt: skip
        assert not output.parent.exists()
        return found

    return run


@pytest.mark.parametrize("preset", [name for name in preset_names() if name not in QUANTIZED])
def test_preset_in_high_precision_is_planned_for_a_cpu(plan, preset):
    status, out, err = plan(preset, "cpu")
    assert status == 0, err
    assert "calibrate:transformer" not in out


@pytest.mark.parametrize("preset", [name for name in preset_names() if name not in QUANTIZED])
@pytest.mark.parametrize("gpu", targets())
def test_preset_in_high_precision_resolves_for_every_target(preset, gpu):
    if preset.endswith("tiny") and gpu in HOPPER:
        with pytest.raises(UnavailableError, match=r"VIDC-BACKEND-PRECISION.*aoti has no fp32"):
            resolve(preset, gpu=gpu, environ={})
        return
    found = resolve(preset, gpu=gpu, environ={})
    assert (found.preset, found.quantization) == (preset, None)
    assert set(found.precision.values()) <= set(found.target.precisions)


@pytest.mark.parametrize(
    ("preset", "gpu"), [(preset, gpu) for preset, gpus in QUANTIZED.items() for gpu in gpus]
)
def test_preset_in_8_bits_asks_for_a_text_encoder_or_a_calibration(plan, preset, gpu):
    status, _, err = plan(preset, gpu)
    assert status == 2
    assert "VIDC-CALIBRATION-NEEDED" in err
    assert "add --text-encoder FOLDER" in err
    high = {"cpu": "fp32", "t4": "fp16"}.get(gpu, "bf16")
    assert f"vidc calibrate {preset} --random-weights 1 --precision {high}, then" in err
    # The command that it names runs in a precision that is exported.
    found = resolve(preset, gpu="cpu", precision=high, environ={}, engines=False)
    assert found.precision["transformer"] == high
    status, _, err = plan(preset, gpu, "--precision", high)
    assert status == 0, err


ELSEWHERE = [
    (preset, gpu) for preset, gpus in QUANTIZED.items() for gpu in targets() if gpu not in gpus
]


@pytest.mark.parametrize(("preset", "gpu"), ELSEWHERE)
def test_no_target_takes_another_precision_in_its_place(plan, gpu, preset):
    status, _, err = plan(preset, gpu)
    assert status == 3
    codes = ("VIDC-TARGET-PRECISION", "VIDC-BACKEND-PRECISION", "VIDC-RECIPE-LOWERING")
    assert any(code in err for code in codes), err
