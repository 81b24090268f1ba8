"""Products of INT8 by ONNX Runtime: exact on every processor, slowed down only where need be."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from vidc.runtime.engines import integer_products
from vidc.runtime.engines.integer_products import ask_exact_products

ROWS, DEPTH, COLUMNS = 12, 64, 32
CONFIG = "session.x64quantprecision"


@pytest.fixture(autouse=True)
def forget():
    integer_products._saturates.cache_clear()
    yield
    integer_products._saturates.cache_clear()


def linear(weight):
    """A Linear in INT8 whose scales are ones, as the backend writes them."""
    constants = {
        "weight": weight, "ones": np.ones(COLUMNS, np.float32), "zeros": np.zeros(COLUMNS, np.int8),
        "one": np.float32(1), "zero": np.uint8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["steps"]),
        helper.make_node("DequantizeLinear", ["steps", "one", "zero"], ["input"]),
        helper.make_node("DequantizeLinear", ["weight", "ones", "zeros"], ["matrix"], axis=0),
        helper.make_node("Gemm", ["input", "matrix"], ["y"], transB=1),
    ]
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "linear",
        [helper.make_tensor_value_info("x", kind, [ROWS, DEPTH])],
        [helper.make_tensor_value_info("y", kind, [ROWS, COLUMNS])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(("left", "right"), [(255, 127), (255, -128), (200, 100), (255, 0)])
def test_the_largest_products_are_exact(left, right, tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ask_exact_products(options)
    model = linear(np.full((COLUMNS, DEPTH), right, np.int8)).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "QGemm" in kinds
    (product,) = session.run(["y"], {"x": np.full((ROWS, DEPTH), left, np.float32)})
    assert (product == left * right * DEPTH).all()


def test_sets_no_option_on_a_processor_with_exact_matmuls(monkeypatch):
    monkeypatch.setattr(integer_products, "_saturates", lambda: False)
    options = onnxruntime.SessionOptions()
    ask_exact_products(options)
    with pytest.raises(RuntimeError, match=CONFIG):
        options.get_session_config_entry(CONFIG)


class Saturating:
    """ONNX Runtime on a processor that adds two products in 16 bits."""

    def __init__(self, graph, options, providers):
        onnx.checker.check_model(onnx.load_from_string(graph))

    def run(self, names, given):
        pairs = given["x"].astype(int)[:, :, None] * given["w"].astype(int)
        sums = np.clip(pairs.reshape(len(pairs), -1, 2, pairs.shape[2]).sum(2), -(2**15), 2**15 - 1)
        return [sums.sum(1)]


def test_sets_the_option_on_a_processor_that_saturates(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime, "InferenceSession", Saturating)
        options = onnxruntime.SessionOptions()
        ask_exact_products(options)
    assert options.get_session_config_entry(CONFIG) == "1"


def test_probes_the_processor_once_per_process(monkeypatch):
    ask_exact_products(onnxruntime.SessionOptions())
    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    ask_exact_products(onnxruntime.SessionOptions())
