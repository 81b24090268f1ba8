"""Quantization against ONNX's own definition of it, and against ModelOpt's."""

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from modelopt_here import needs_modelopt
from onnx.reference import ReferenceEvaluator

from vidc.compiler.quantize.arithmetic import DTYPES, LARGEST, scale_of, smoothing
from vidc.plugins.quantize import quantize

VALUES = arrays(np.float32, (5, 4), elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False))
KINDS = {"int8": onnx.TensorProto.INT8, "fp8": onnx.TensorProto.FLOAT8E4M3FN}


def by_onnx(values, scale, form):
    node = onnx.helper.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=KINDS[form])
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [
            onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, values.shape),
            onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, []),
        ],
        [onnx.helper.make_tensor_value_info("y", KINDS[form], values.shape)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
    (found,) = ReferenceEvaluator(model).run(None, {"x": values, "s": np.float32(scale)})
    return found.astype(np.float32)


@pytest.mark.parametrize("form", KINDS)
@given(values=VALUES)
def test_quantization_matches_onnx(form, values):
    scale = scale_of(torch.from_numpy(values).abs().amax(), form)
    if not float(scale) > 1e-30:
        return  # Steps so small are not exact in float32.
    found = quantize(torch.from_numpy(values), scale, DTYPES[form]).float().numpy()
    assert np.array_equal(found, by_onnx(values, scale, form))


@pytest.mark.parametrize("form", KINDS)
@given(values=VALUES)
def test_quantization_uses_full_range(form, values):
    tensor = torch.from_numpy(values)
    amax = tensor.abs().amax(1)
    scale = scale_of(amax, form)
    assert (scale > 0).all()
    found = quantize(tensor, scale[:, None], DTYPES[form]).float()
    assert found.isfinite().all()
    assert (found.abs() <= LARGEST[form]).all()
    used = amax > 1e-30
    assert (found.abs().amax(1)[used] == LARGEST[form]).all()


@given(values=VALUES, times=st.floats(1.5, 100))
def test_quantization_saturates(values, times):
    tensor = torch.from_numpy(values)
    for form in KINDS:
        small = scale_of(tensor.abs().amax(), form) / times
        found = quantize(tensor, small, DTYPES[form]).float()
        outside = tensor.abs() > small * LARGEST[form] * 1.01
        assert (found.abs()[outside] == LARGEST[form]).all()


@given(inputs=VALUES, weights=VALUES, alpha=st.floats(0, 1))
def test_smoothing_preserves_matmul(inputs, weights, alpha):
    x, w = torch.from_numpy(inputs).double(), torch.from_numpy(weights).double()
    factors = smoothing(x.abs().amax(0).float(), [w.float()], alpha).double()
    assert (factors > 0).all()
    torch.testing.assert_close((x / factors) @ (w * factors).T, x @ w.T, rtol=1e-9, atol=1e-6)


@needs_modelopt
@pytest.mark.parametrize(("form", "bits"), [("int8", 8), ("fp8", (4, 3))])
def test_weights_are_those_of_modelopt_by_the_same_ranges(form, bits):
    import modelopt.torch.quantization as mtq

    weight = torch.randn(24, 32, generator=torch.Generator().manual_seed(0))
    attributes = mtq.config.QuantizerAttributeConfig(num_bits=bits, axis=(0,))
    quantizer = mtq.nn.TensorQuantizer(attributes)
    quantizer.amax = weight.abs().amax(1, keepdim=True)
    scale = scale_of(weight.abs().amax(1), form)[:, None]
    found = quantize(weight, scale, DTYPES[form]).float() * scale
    torch.testing.assert_close(found, quantizer(weight), rtol=1e-6, atol=1e-7)
