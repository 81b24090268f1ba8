"""The trial finds what is wrong with a kernel, and outlives it. The emulation is the kernel."""

import sys

import pytest
import torch
from attention_8bit import trial
from attention_8bit.checks import (
    check_output,
    check_products,
    check_single_keys,
    first_wrong,
    problem,
    rounding,
)
from attention_8bit.emulation import emulate
from attention_8bit.kernel import Emulation
from attention_8bit.ring import Ring8Bit

CPU = torch.device("cpu")
INT8 = torch.int8
FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module", params=[INT8, FP8], ids=str)
def at(request):
    return problem(200, 300, 2, 64, 1, CPU, request.param)


class Wrong(Emulation):
    """Right but for what ``spoil`` does to the output or the products."""

    def __init__(self, spoil):
        self.spoil = spoil

    def __call__(self, *arguments, products=None, **options):
        found = super().__call__(*arguments, products=products, **options)
        self.spoil(found if products is None else products)
        return found


def test_the_emulation_is_found_right(at):
    found = check_output(Emulation(), at, 257)
    assert found.problem is None
    assert 0.001 < found.against_emulation < 0.002
    assert found.against_float64 < 0.04
    assert list(check_products(Emulation(), at)) == []


@pytest.mark.parametrize("value", [torch.nan, 100.0])
def test_one_wrong_element_is_named(at, value):
    def spoil(output):
        output[0, 150, 1, 33] = value

    found = check_output(Wrong(spoil), at, 257)
    assert "query 150 (row 22 of tile 1), head 1, channel 33" in found.problem
    assert "1 of 25600 elements in 1 rows, in 1 channels, query tiles [1]" in found.problem


def test_an_output_that_was_not_written_is_found(at):
    def spoil(output):
        output.view(torch.uint8).fill_(0x7F)

    assert "query 0 (row 0 of tile 0)" in check_output(Wrong(spoil), at, 257).problem


def test_keys_that_are_left_out_are_found(at):
    class Short(Emulation):
        def __call__(self, query, scale, ring, scales, valid_length, **options):
            return super().__call__(query, scale, ring, scales, valid_length - 40, **options)

    assert check_output(Short(), at, 257).problem is not None


def test_a_wrong_product_is_named(at):
    def spoil(products):
        # In FP8 the last bits may be lost.
        products[3, 5] += 1 if products.dtype == torch.int32 else products.abs().max() / 100

    (found,) = check_products(Wrong(spoil), at)
    assert "1 of 16384 products differ, first at row 3, key 5" in found


def test_few_keys_whose_weights_are_rounded_otherwise_are_not_wrong():
    """In FP8 a key that draws all of the weight may count a sixteenth more or less."""
    at = problem(64, 300, 1, 64, 1, CPU, FP8)
    at.query_scale.mul_(30)
    wanted = emulate(at.query, at.query_scale, at.ring, at.scales, 300)
    centered = wanted - at.scales.value_mean
    otherwise = wanted + centered / 16
    assert first_wrong(otherwise, wanted) is not None
    assert first_wrong(otherwise, wanted, rounding(at, 300)) is None
    assert first_wrong(wanted + centered / 2, wanted, rounding(at, 300)) is not None


def test_rounding_is_not_wrong():
    wanted = torch.randn(1, 4, 1, 64)
    assert first_wrong(wanted + 0.01 * torch.randn(1, 4, 1, 64), wanted) is None


@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
def test_a_key_that_is_taken_for_another_is_named(dtype):
    class Shifted(Emulation):
        def __call__(self, query, scale, ring, scales, valid_length, **options):
            moved = Ring8Bit(ring.key.view(INT8).roll(1, dims=1).view(ring.key.dtype), ring.value)
            return super().__call__(query, scale, moved, scales, valid_length, **options)

    assert list(check_single_keys(Emulation(), 64, CPU, dtype)) == []
    first, *_ = check_single_keys(Shifted(), 64, CPU, dtype)
    assert "query 0 should see key 0" in first
    assert "key 1 agrees in 64" in first


@pytest.mark.parametrize(
    "group",
    [
        "environment",
        "timing",
        *(
            f"{name}_{kind}"
            for name in trial.OF_FORMAT
            for kind in trial.FORMATS
            if name != "outputs_128"
        ),
    ],
)
def test_groups_run_on_the_cpu(group):
    records = list(trial.GROUPS[group][0](trial.Trial(None)))
    assert records
    assert not any(record.get("problem") for record in records)


SCRIPT = """
import sys, time, json
print(json.dumps({"problem": None}), flush=True)
group = sys.argv[sys.argv.index("--group") + 1]
if group == "products_int8":
    time.sleep(60)
if group == "types_fp8":
    sys.exit("the GPU is gone")
print('{"problem": "two ele')
"""


@pytest.mark.parametrize(
    ("group", "scale", "ended"),
    [
        ("products_int8", 0.02, "took too long"),
        ("types_fp8", 1, "ended with 1"),
        ("shares_int8", 1, None),
    ],
)
def test_a_group_that_fails_keeps_what_it_found(monkeypatch, tmp_path, group, scale, ended):
    script = tmp_path / "trial.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(trial, "PROGRAM", (str(script),))
    found = trial.collect(group, ["--emulate"], scale)
    assert found["ended"] == ended
    assert found["records"] == [{"problem": None}]
    if group == "types_fp8":
        assert "the GPU is gone" in found["stderr"]


def test_a_library_or_the_emulation(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trial.py"])
    with pytest.raises(SystemExit):
        trial.main()
    assert "either a library or --emulate" in capsys.readouterr().err
