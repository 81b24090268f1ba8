import pickle

import pytest

from vidc.compiler.backends import GraphError
from vidc.compiler.lines import naming_lines
from vidc.compiler.settings.resolve import resolve
from vidc.plugins.errors import BuildError

SETTINGS = resolve("tiny", gpu="cpu", environ={})


def complaint(value):
    error = GraphError("VIDC-TENSORRT-PARSE", "denoise: no", "try", "denoise", value)
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("layer_norm_1", "layer_norm(x, self.eps, self.norm2)"),
        # The second of a layer's attentions: ONNX has the first one as it is.
        ("scaled_dot_product_attention", "F.scaled_dot_product_attention("),
    ],
)
def test_the_line_of_a_value_is_named(value, code):
    line = r"no; it comes from .*layers\.py:\d+: "
    with pytest.raises(BuildError, match=line) as caught, naming_lines(SETTINGS):
        raise complaint(value)
    assert code in caught.value.message
    assert (caught.value.code, caught.value.hint) == ("VIDC-TENSORRT-PARSE", "try")


@pytest.mark.parametrize("value", ["", "absent"])
def test_a_value_without_a_line_is_left_alone(value):
    with pytest.raises(BuildError) as caught, naming_lines(SETTINGS):
        raise complaint(value)
    assert caught.value.message == "denoise: no"


def test_values_of_a_quantised_graph_have_their_own_lines():
    """Rounding puts operations before and behind every Linear, and numbers go on behind them."""
    value = "_symbolic_20"
    with pytest.raises(BuildError) as caught, naming_lines(SETTINGS):
        raise complaint(value)
    assert caught.value.message == "denoise: no"
    quantised = resolve("tiny", gpu="rtx4090", precision="fp8", environ={})
    with pytest.raises(BuildError) as caught, naming_lines(quantised):
        raise complaint(value)
    assert "no; it comes from " in caught.value.message
    assert "layers.py:" in caught.value.message
