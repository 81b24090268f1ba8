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


def test_the_line_of_a_value_is_named():
    line = r"denoise: no; it comes from .*layers\.py:\d+: "
    with pytest.raises(BuildError, match=line) as e, naming_lines(SETTINGS):
        raise complaint("layer_norm_1")
    assert (e.value.code, e.value.hint) == ("VIDC-TENSORRT-PARSE", "try")


def test_a_value_without_a_line_is_left_alone():
    with pytest.raises(BuildError) as caught, naming_lines(SETTINGS):
        raise complaint("")
    assert caught.value.message == "denoise: no"
