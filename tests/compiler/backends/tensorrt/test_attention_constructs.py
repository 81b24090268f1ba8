"""Attention nodes of the table of constructs in TensorRT-RTX's parser."""

import onnx
import pytest

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.backends.tensorrt.built_layers import Log, new_builder
from vidc.compiler.backends.tensorrt.network import attention_layers
from vidc.compiler.backends.tensorrt.product import PRODUCTS

MODULE = PRODUCTS["tensorrt_rtx"].module()
TEXT = """
<ir_version: 10, opset_import: ["" : 25]>
toy (float16[1, 2, 64, 64] q, float16[1, 2, 128, 64] k, float16[1, 2, 128, 64] v, int64[1] length)
 => (float16[1, 2, 64, 64] y) {{
  y = Attention{attributes}({inputs})
}}
"""


def parsed(attributes="", inputs="q, k, v"):
    """The layers of a graph, of its attention how many keys it reads and what it masks."""
    log = Log(MODULE)
    definition = (builder := new_builder(MODULE, log)).create_network(0)
    parser = MODULE.OnnxParser(definition, log.logger)
    text = TEXT.format(attributes=attributes, inputs=inputs)
    assert parser.parse(onnx.parser.parse_model(text).SerializeToString())
    (layer,) = attention_layers(MODULE, definition)
    kinds = [definition.get_layer(index).type for index in range(definition.num_layers)]
    found = (kinds, layer.key_value_lengths, layer.mask, layer.causal_kind)
    del parser, definition, builder
    return found


@pytest.mark.parametrize(
    ("attributes", "inputs"),
    [
        ("", "q, k, v, , , , length"),
        ("<left_window_size = 8>", "q, k, v"),
        ("<left_window_size = 8, right_window_size = 0>", "q, k, v"),
    ],
)
def test_padded_keys_and_windows_are_ignored(attributes, inputs):
    plain, ignored = parsed(), parsed(attributes, inputs)
    assert ignored == plain
    assert ignored[1:] == (None, None, MODULE.CausalMaskKind.NONE)


def test_a_causal_rectangle_counts_from_the_first_key():
    """By the standard from the last one."""
    assert parsed("<is_causal = 1>")[3] == MODULE.CausalMaskKind.UPPER_LEFT
