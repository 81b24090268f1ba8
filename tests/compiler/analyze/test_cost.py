"""Predicted times, against sums by hand."""

from dataclasses import replace

import pytest

from vidc.compiler.analyze import cost
from vidc.compiler.analyze.cost import predict
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.support import AOTI_CPU, AOTI_GPU, TENSORRT
from vidc.compiler.validate import estimate
from vidc.plugins.errors import UnavailableError

TINY = resolve("tiny", gpu="cpu", environ={}).model
LONGLIVE = resolve("longlive-1.3b", gpu="cpu", precision="fp32", environ={}).model
ROWS = 3 * 1560
H100 = targets()["h100"]


def costs(recipe, target=H100, model=LONGLIVE):
    return predict(model, target, apply_recipe(load_recipe(recipe), model))


def test_a_linear_by_hand():
    product = 2 * ROWS * 1536 * 8960
    high = product / 989.4e12  # Its bytes take a third of that.
    fp8 = product / 1978.9e12 + ROWS * 1536 * 3 / 3350e9
    saved = costs("fp8-linear").saved
    assert saved["blocks.0.ffn.net.0.proj"] == pytest.approx(5 * (high - fp8))
    # The clean pass ends at the last layer's keys and values.
    assert saved["blocks.29.ffn.net.0.proj"] == pytest.approx(4 * (high - fp8))
    assert saved["blocks.29.attn1.to_k"] == pytest.approx(saved["blocks.0.attn1.to_k"])
    assert saved["blocks.29.attn1.to_q"] == pytest.approx(saved["blocks.0.attn1.to_q"] * 4 / 5)


def test_linears_that_read_one_input_share_its_quantization():
    found = costs("fp8-linear").saved
    # Of the same sizes, and three read one input where the other has its own.
    alone, shared = found["blocks.0.attn1.to_out.0"], found["blocks.0.attn1.to_v"]
    assert shared - alone == pytest.approx(5 * 2 / 3 * ROWS * 1536 * 3 / 3350e9)


def test_attention_by_hand():
    product = 4 * ROWS * 12 * 1560 * 1536
    saved = costs("fp8").saved["blocks.3.attn1"]
    assert saved == pytest.approx(5 * product * (1 / 989.4e12 - 1 / 1978.9e12))
    # The ring alone in 8 bits leaves the product what it is, which takes longer than its bytes.
    assert set(costs("kv-fp8").saved.values()) == {0}


def test_block_time_includes_all_layers():
    found = costs("fp8")
    passes = LONGLIVE.transformer_part.frame_flops() * 3 * 5
    # `frame_flops` leaves out the ends, and counts a last layer's clean pass that is not needed.
    assert found.seconds == pytest.approx(passes / 989.4e12, rel=0.05)
    assert 0.4 < sum(found.saved.values()) / found.seconds < 0.5


def test_weight_only_adds_dequantization_pass():
    saved = costs("int8-weight-only").saved
    assert saved["blocks.0.ffn.net.2"] == pytest.approx(-5 * 1536 * 8960 * 3 / 3350e9)
    # Those of the text run once a prompt.
    assert saved["blocks.0.attn2.to_k"] == 0
    assert max(saved.values()) == 0


def test_unsupported_matmuls_save_no_time():
    formats = apply_recipe(load_recipe("int8-static"), LONGLIVE)
    weights = apply_recipe(load_recipe("int8-weight-only"), LONGLIVE)
    # aoti's engines for a Hopper GPU have none of INT8, whose peak its target has all the same.
    assert H100.peaks.int8 > H100.peaks.bf16
    found = predict(LONGLIVE, H100, formats, AOTI_GPU).saved
    assert found == predict(LONGLIVE, H100, weights, AOTI_GPU).saved
    assert max(found.values()) == 0
    assert predict(LONGLIVE, H100, formats, TENSORRT).saved["blocks.0.ffn.net.2"] > 0


@pytest.mark.parametrize("recipe", ["int8-static", "int8-weight-only", "kv-int8"])
def test_emulated_matmuls_save_no_time(recipe):
    formats, cpu = apply_recipe(load_recipe(recipe), TINY), targets()["cpu"]
    assert max(predict(TINY, cpu, formats, AOTI_CPU).saved.values()) <= 0


def test_text_layers_save_no_block_time():
    assert costs("fp8-linear").saved["blocks.0.attn2.to_k"] == 0


def test_time_is_proportional_to_batch():
    two = replace(LONGLIVE, stream=replace(LONGLIVE.stream, batch=2))
    one, both = costs("fp8"), costs("fp8", model=two)
    assert both.seconds == pytest.approx(2 * one.seconds, rel=0.01)


def test_high_precision_depends_on_target():
    assert costs("fp8").precision == "bf16"
    assert costs("int8", targets()["t4"]).precision == "fp16"
    assert costs("int8-static", targets()["cpu"], TINY).precision == "fp32"


def test_cpu_int8_speedup_is_the_measured_one(monkeypatch):
    monkeypatch.setattr(cost, "cores", lambda: 2)
    found = costs("int8-static", targets()["cpu"])
    product = 2 * ROWS * 1536 * 8960 / (2 * estimate.CPU_FLOPS_A_CORE)
    quantizing = ROWS * 8960 * 5 / (2 * cost.CPU_BYTES_A_CORE)
    expected = 5 * (product / 2 - quantizing)
    assert found.saved["blocks.0.ffn.net.2"] == pytest.approx(expected)


@pytest.mark.parametrize(("recipe", "target"), [("fp8", "a100"), ("kv-fp8", "t4")])
def test_rejects_format_unsupported_by_target(recipe, target):
    with pytest.raises(UnavailableError, match="VIDC-TARGET-PRECISION"):
        costs(recipe, targets()[target])


def test_cpu_stores_fp8_rings_without_fp8_matmul():
    assert set(costs("kv-fp8", targets()["cpu"]).saved.values()) == {0}
    with pytest.raises(UnavailableError, match=r"VIDC-SENSITIVITY-PEAKS.*no peak for fp8"):
        costs("fp8", targets()["cpu"])


def test_rejects_target_without_peak():
    bare = replace(H100, peaks=replace(H100.peaks, memory=None))
    with pytest.raises(
        UnavailableError, match=r"VIDC-SENSITIVITY-PEAKS.*h100 has no peak for memory"
    ):
        costs("fp8", bare)
