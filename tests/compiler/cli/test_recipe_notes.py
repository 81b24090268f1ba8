"""Notes of `vidc build` on its recipe and on 8 bits on the target."""

import pytest

NOTE = "h100: INT8 matmuls are slower than bf16 here: use INT8 for memory and FP8 for speed"
BUILD = ("build", "demo", "--random-weights", "1", "--gpu", "h100", "--plan", "--precision")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(tmp_path / "cache"))


def test_int8_on_hopper_saves_memory_and_fp8_is_the_faster_one(vidc):
    status, _, err = vidc(*BUILD, "int8")
    assert status == 0, err
    assert (
        "int8: recipe int8-weight-only, the default of h100: INT8 matmuls are slower than bf16 "
        "here, so INT8 only saves memory; FP8 is faster (" in err
    )
    # The reason has said it.
    assert NOTE not in err


@pytest.mark.parametrize("recipe", ["kv-int8", "int8-weight-only"])
def test_a_recipe_that_was_named_comes_with_the_target_s_notes(vidc, recipe):
    _, _, err = vidc(*BUILD, "int8", "--recipe", recipe)
    assert f"int8: recipe {recipe}, as --recipe says (" in err
    assert NOTE in err
