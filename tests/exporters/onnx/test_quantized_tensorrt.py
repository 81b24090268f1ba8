"""TensorRT's form of quantized linear layers, run by ONNX Runtime."""

from collections import Counter

import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

from vidc.exporters.onnx.quantized import UNIT, linear_for_tensorrt
from vidc.exporters.onnx.simplify import simplify
from vidc.exporters.tracing import tracing
from vidc.plugins.ops.quantized_linear import quantized_linear

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
ELEMENTS = {torch.float32: 1, torch.int8: 3, torch.float16: 10, torch.float8_e4m3fn: 17}
NAMES = ("x", "weight", "weight_scale", "bias", "scale", "pre_quant_scale", "mean")
WIDTH, OUT = 32, 16


class _Linear(nn.Module):
    def forward(self, *given):
        return linear_for_tensorrt(*given)


def drawn(dtype, form, inputs=True, factor=False, bias=True, mean=False, width=WIDTH, rows=(2, 5)):
    """The operator's arguments, by name; None for those that are left out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*rows, width, generator=generator)
    weight = torch.randn(OUT, width, generator=generator)
    given = dict.fromkeys(NAMES)
    if factor:
        given["pre_quant_scale"] = torch.rand(width, generator=generator) + 0.5
        weight = weight / given["pre_quant_scale"]
    scale = weight.abs().amax(1) / LARGEST[form]
    steps = weight / scale[:, None]
    given["weight"] = (steps.round() if form is torch.int8 else steps).to(form)
    if mean:
        given["mean"] = torch.randn(width, generator=generator)
        x = x + given["mean"]
    if inputs:
        reach = (
            (
                (x - (given["mean"] if mean else 0))
                * (1 if given["pre_quant_scale"] is None else given["pre_quant_scale"])
            )
            .abs()
            .max()
        )
        # Some values are out of range, as on other prompts than those of a calibration; of INT8
        # none, as Q goes to -128 and the operator to -127.
        share = 1.0 if form is torch.int8 else 0.8
        given["scale"] = share * reach / LARGEST[form]
    if bias:
        given["bias"] = torch.randn(OUT, generator=generator).to(dtype)
    return given | {"x": x.to(dtype), "weight_scale": scale}


def exported(given, path):
    """The graph of these arguments, each an input."""
    with tracing():
        made = torch.onnx.export(
            _Linear().eval(), tuple(given.values()), opset_version=24, optimize=False,
            verbose=False, input_names=[name for name, value in given.items() if value is not None],
            output_names=["y"],
        )  # fmt: skip
    simplify(made.model)
    ir.save(made.model, path)
    return made.model


def run(path, given, shape):
    """The graph's output, by addresses: numpy has no FP8."""
    options = onnxruntime.SessionOptions()
    # With more of them it looks for kernels of FP8 on a CPU, and finds none.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding, result = session.io_binding(), torch.empty(shape, dtype=given["x"].dtype)
    for node in session.get_inputs():
        value = given[node.name]
        kind = ELEMENTS[value.dtype]
        binding.bind_input(node.name, "cpu", 0, kind, tuple(value.shape), value.data_ptr())
    kind = ELEMENTS[result.dtype]
    binding.bind_output("y", "cpu", 0, kind, tuple(result.shape), result.data_ptr())
    session.run_with_iobinding(binding)
    return result


@pytest.mark.parametrize("form", LARGEST, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("inputs", "factor", "bias", "mean"),
    [
        (True, False, True, False),
        (True, True, False, False),
        (True, True, True, True),
        (False, False, True, False),
    ],
    ids=["static", "smooth", "centered", "weights"],
)
def test_form_matches_the_operator(tmp_path, form, dtype, inputs, factor, bias, mean):
    given = drawn(dtype, form, inputs, factor, bias, mean)
    model = exported(given, tmp_path / "linear.onnx")
    kinds = Counter(node.op_type for node in model.graph)
    assert (kinds["QuantizeLinear"], kinds["DequantizeLinear"]) == (int(inputs), 1 + inputs)
    assert (kinds["Gemm"], kinds["MatMul"], kinds["Transpose"]) == (1, 0, 0)
    expected = quantized_linear(*given.values())
    found = run(tmp_path / "linear.onnx", given, expected.shape)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-3
    assert float((found - expected).abs().max()) < tolerance * float(expected.abs().max())


@pytest.mark.parametrize("form", LARGEST, ids=str)
def test_scales_of_q_and_dq_are_constants(tmp_path, form):
    """With other scales TensorRT multiplies in high precision."""
    model = exported(drawn(torch.float16, form), tmp_path / "linear.onnx")
    for node in model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            (value,) = {float(node.inputs[1].const_value.numpy())}
            assert value == UNIT[form]


@pytest.mark.parametrize("form", LARGEST, ids=str)
def test_the_largest_sums_fit_float16(tmp_path, form):
    width = 8960
    given = drawn(torch.float16, form, width=width, rows=(1, 3))
    given["x"] = torch.full_like(given["x"], 3.0)
    given["scale"] = torch.tensor(3.0 / LARGEST[form])
    given["weight"] = torch.full((OUT, width), LARGEST[form]).to(form)
    given["weight_scale"] = torch.full((OUT,), 0.01)
    exported(given, tmp_path / "linear.onnx")
    expected = quantized_linear(*given.values())
    found = run(tmp_path / "linear.onnx", given, expected.shape)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)


def test_linears_of_one_input_share_its_qdq(tmp_path):
    class Two(nn.Module):
        def forward(self, x, weight, other, weight_scale, scale):
            made = (linear_for_tensorrt(x, w, weight_scale, None, scale, None, None) for w in
                    (weight, other))  # fmt: skip
            return tuple(made)

    given = drawn(torch.float16, torch.int8, bias=False)
    values = [given[name] for name in ("x", "weight", "weight", "weight_scale", "scale")]
    values[2] = values[2].flip(0)
    with tracing():
        made = torch.onnx.export(Two().eval(), tuple(values), opset_version=24, optimize=False,
                                 verbose=False)  # fmt: skip
    simplify(made.model)
    kinds = Counter(node.op_type for node in made.model.graph)
    assert (kinds["QuantizeLinear"], kinds["DequantizeLinear"], kinds["Gemm"]) == (1, 3, 2)
