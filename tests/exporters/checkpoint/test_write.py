import json
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vidc.exporters.checkpoint.lazy import LazyTensor, cast
from vidc.exporters.checkpoint.read import read_checkpoint
from vidc.exporters.checkpoint.write import weight_layout, write_weights
from vidc.plugins.errors import BuildError

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64]


def lazy(state: dict[str, Tensor]) -> dict[str, LazyTensor]:
    return {name: LazyTensor.of(tensor) for name, tensor in state.items()}


@st.composite
def states(draw: st.DrawFn) -> dict[str, Tensor]:
    names = draw(st.sets(st.text(min_size=1, max_size=12).filter(_encodes), min_size=1, max_size=5))
    state = {}
    for seed, name in enumerate(sorted(names)):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = draw(st.sampled_from(DTYPES))
        values = 50 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        state[name] = values.to(dtype)
    return state


def _encodes(name: str) -> bool:
    return name != "__metadata__" and name.isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(state=states())
def test_round_trip_and_layout(tmp_path: Path, state: dict[str, Tensor]) -> None:
    file = tmp_path / "w.safetensors"
    write_weights(file, lazy(state))
    with safe_open(file, framework="pt") as opened:
        assert set(opened.keys()) == set(state)
        for name, tensor in state.items():
            assert opened.get_tensor(name).dtype == tensor.dtype
            assert torch.equal(opened.get_tensor(name), tensor)
    read = read_checkpoint(file).tensors
    assert all(torch.equal(read[name].load(), state[name]) for name in state)

    content = file.read_bytes()
    layout = weight_layout({name: tensor.to("meta") for name, tensor in state.items()})
    assert layout.keys() == state.keys()
    end = 8 + int.from_bytes(content[:8], "little")
    assert end % 8 == 0
    for name, place in layout.items():
        assert place.offset == end
        assert place.offset % place.dtype.itemsize == 0
        assert (place.dtype, place.shape) == (state[name].dtype, tuple(state[name].shape))
        end += place.nbytes
        raw = state[name].reshape(-1).view(torch.uint8).numpy().tobytes()
        assert content[place.offset : end] == raw
    assert end == len(content)


def test_same_bytes_as_safetensors_writes(tmp_path: Path) -> None:
    state = {"b": torch.randn(3), "a": torch.randn(2, 2), "c": torch.arange(3, dtype=torch.int64)}
    save_file(state, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    write_weights(tmp_path / "ours.safetensors", lazy(state))
    assert (tmp_path / "ours.safetensors").read_bytes() == (
        tmp_path / "theirs.safetensors"
    ).read_bytes()


def test_order_of_the_tensors_does_not_matter(tmp_path: Path) -> None:
    state = {"b": torch.randn(3), "a": torch.randn(2).half(), "c": torch.randn(1)}
    write_weights(tmp_path / "1", lazy(state))
    write_weights(tmp_path / "2", lazy(dict(reversed(state.items()))))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert list(weight_layout(state)) == ["b", "c", "a"]


def test_strided_tensor(tmp_path: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    write_weights(tmp_path / "w.safetensors", {"a": LazyTensor.of(tensor)})
    assert torch.equal(read_checkpoint(tmp_path / "w.safetensors").tensors["a"].load(), tensor)


def test_one_tensor_in_memory_at_a_time(tmp_path: Path) -> None:
    alive: list[weakref.ref[object]] = []
    most = 0

    def load() -> Tensor:
        nonlocal most
        tensor = torch.zeros(64)
        alive.append(weakref.ref(tensor))
        most = max(most, sum(ref() is not None for ref in alive))
        return tensor

    tensors = {str(i): LazyTensor((64,), torch.float32, load) for i in range(20)}
    write_weights(tmp_path / "w.safetensors", cast(tensors, torch.bfloat16))
    assert len(alive) == 20
    assert most == 1


def test_a_tensor_that_is_not_what_it_announced(tmp_path: Path) -> None:
    liar = LazyTensor((2,), torch.float32, lambda: torch.zeros(3))
    with pytest.raises(ValueError, match="a loads 12 bytes, but announces 8"):
        write_weights(tmp_path / "w.safetensors", {"a": liar})


def test_written_file_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr("os.fsync", lambda fd: sizes.append((tmp_path / "w").stat().st_size))
    write_weights(tmp_path / "w", lazy({"a": torch.zeros(1000)}))
    assert sizes == [(tmp_path / "w").stat().st_size]


def test_header_names_the_framework(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", lazy({"a": torch.zeros(1)}))
    content = (tmp_path / "w").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"] == {"format": "pt"}


def test_cast() -> None:
    state = {"a": torch.tensor([1.0, 65504.0]), "b": torch.tensor([7e4])}
    half = cast(lazy(state), torch.float16)
    assert half["a"].dtype == torch.float16
    assert torch.equal(half["a"].load(), state["a"].half())
    with pytest.raises(BuildError) as caught:
        half["b"].load()
    assert caught.value.code == "VIDC-CHECKPOINT-OVERFLOW"
    assert caught.value.message.startswith("b ")
