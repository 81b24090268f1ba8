"""The digest of weights: what changes it, and what does not."""

import pytest
import torch

from vidc.exporters.checkpoint.digest import Digests
from vidc.exporters.checkpoint.lazy import LazyTensor, cast
from vidc.exporters.checkpoint.write import write_weights

WEIGHTS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([0.5, -1.5])}


def digest(weights, path=None):
    digests = Digests({name: LazyTensor.of(tensor) for name, tensor in weights.items()})
    if path is not None:
        write_weights(path, cast(digests.tensors, torch.bfloat16))
    else:
        for tensor in digests.tensors.values():
            tensor.load()
    return digests.digest()


def test_it_is_taken_while_weights_are_written_in_any_precision(tmp_path):
    assert digest(WEIGHTS, tmp_path / "w.safetensors") == digest(WEIGHTS)


def test_neither_dtype_nor_order_nor_layout_in_memory_counts():
    halves = {name: tensor.half() for name, tensor in reversed(WEIGHTS.items())}
    assert digest(halves) == digest(WEIGHTS)
    assert digest(WEIGHTS | {"b": WEIGHTS["b"].T.contiguous().T}) == digest(WEIGHTS)


@pytest.mark.parametrize(
    "changed",
    [
        WEIGHTS | {"a": torch.tensor([0.5, -1.25])},
        WEIGHTS | {"a": torch.tensor([[0.5, -1.5]])},
        WEIGHTS | {"c": torch.zeros(0)},
        {"b": WEIGHTS["b"], "c": WEIGHTS["a"]},
    ],
)
def test_values_shapes_and_names_count(changed):
    assert digest(changed) != digest(WEIGHTS)


def test_there_is_none_until_all_is_loaded():
    digests = Digests({name: LazyTensor.of(tensor) for name, tensor in WEIGHTS.items()})
    digests.tensors["a"].load()
    with pytest.raises(ValueError, match="not loaded: b"):
        digests.digest()
