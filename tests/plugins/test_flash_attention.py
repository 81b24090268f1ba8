"""Everything around the kernel: what it is given is checked, the kernel itself stands aside."""

import ctypes
import json
import math
import shutil
import struct
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from vidc.compiler.backends.aoti.inductor import compile_package
from vidc.plugins.errors import GateError, UnavailableError, UsageError
from vidc.plugins.ops import flash_attention as module
from vidc.plugins.ops.flash_attention import LaunchFacts, flash_attention_sm90, load_kernel

FACTS = LaunchFacts(
    symbol="attend", dtype="bfloat16", head_dim=128, capability=(9, 0), tile_m=192, tile_n=112,
    threads=384, shared_bytes=1000, parameter_bytes=(12, 128, 4, 128, 16, 128, 128, 1, 12, 40),
    sizes=8, lengths=4, logsumexp=9, query=6, key=1, value=3, output=5, scale=2,
)  # fmt: skip
CPU = torch.device("cpu")


def tensors(batch=2, tokens=5, slots=9, heads=3, head_dim=128, dtype=torch.bfloat16, length=4):
    return {
        "query": torch.ones(batch, tokens, heads, head_dim, dtype=dtype),
        "key": torch.ones(batch, slots, heads, head_dim, dtype=dtype),
        "value": torch.ones(batch, slots, heads, head_dim, dtype=dtype),
        "valid_length": torch.tensor([length]),
    }


@dataclass
class Launched:
    grid: tuple
    threads: int
    parameters: list[bytes]
    addresses: list[int]


class Recorder:
    """Stands for a kernel and records its parameters and tensor maps."""

    def __init__(self):
        self.launches = []
        self.maps = {}

    def launch(self, grid, threads, parameters):
        sizes = FACTS.parameter_bytes
        read = [ctypes.string_at(p, size) for p, size in zip(parameters, sizes, strict=True)]
        self.launches.append(Launched(grid, threads, read, list(parameters)))

    def tensor_map(self, address, dtype, sizes, strides, box):
        made = TensorMap()
        self.maps[made.address] = (address, dtype, sizes, strides, box)
        return made


class TensorMap:
    def __init__(self):
        self.memory = ctypes.create_string_buffer(128)
        self.address = ctypes.addressof(self.memory)


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    loaded = {
        (torch.bfloat16, 128, CPU, False): module._Loaded(made, FACTS, b"", 132),
        (torch.float16, 64, CPU, False): module._Loaded(
            made, replace(FACTS, dtype="float16", head_dim=64), b"", 132
        ),
    }
    monkeypatch.setattr(module, "_LOADED", loaded)
    monkeypatch.setattr(module, "TensorMap", made.tensor_map)
    module._tensor_map.cache_clear()
    yield made
    module._tensor_map.cache_clear()


@given(
    batch=st.integers(1, 3), tokens=st.integers(1, 9), slots=st.integers(1, 9),
    heads=st.integers(1, 4), dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    head_dim=st.sampled_from([64, 128]),
)  # fmt: skip
def test_fake_returns_the_shape_of_the_queries(batch, tokens, slots, heads, dtype, head_dim):
    with FakeTensorMode():
        given = tensors(batch, tokens, slots, heads, head_dim, dtype)
        given["query"] = given["query"].transpose(1, 2).contiguous().transpose(1, 2)
        result = flash_attention_sm90(**given)
    assert result.shape == (batch, tokens, heads, head_dim)
    assert result.dtype == dtype
    assert result.is_contiguous()


def test_export_keeps_one_operator():
    class Attend(torch.nn.Module):
        def forward(self, query, key, value, valid_length):
            return flash_attention_sm90(query, key, value, valid_length)

    program = torch.export.export(Attend(), tuple(tensors().values()))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [flash_attention_sm90]


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_compiled_code_passes_inputs_without_a_copy(recorder, tmp_path):
    """A compiler chooses the layout of tensors between operators, but not of its inputs."""

    class Attend(torch.nn.Module):
        def forward(self, packed, key, value, valid_length):
            query = packed.transpose(1, 2) * 2
            return (flash_attention_sm90(query.contiguous(), key, value, valid_length) + 1,)

    given = tensors()
    packed = given.pop("query").transpose(1, 2).contiguous()
    program = torch.export.export(Attend(), (packed, *given.values()))
    package = tmp_path / "attend.pt2"
    compile_package(program, package)
    engine = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", True, 1, -1)
    (output,) = engine.boxed_run([packed, *given.values()])
    (launch,) = recorder.launches
    assert output.shape == (2, 5, 3, 128)
    assert recorder.maps[launch.addresses[FACTS.key]][0] == given["key"].data_ptr()


def test_kernel_gets_the_parameters_of_its_facts(recorder):
    given = tensors(batch=2, tokens=193, slots=300, heads=3, length=250)
    output = flash_attention_sm90(**given)
    (launch,) = recorder.launches
    assert launch.grid == (2, 3, 2)
    assert launch.threads == 384
    (scale,) = struct.unpack("<f", launch.parameters[FACTS.scale])
    assert scale == pytest.approx(1 / math.sqrt(128) / math.log(2), rel=1e-6)
    _, batch = struct.unpack("<Qq", launch.parameters[FACTS.lengths])
    assert batch == 2
    sizes = (193, 3, 2)
    assert struct.unpack("<3i", launch.parameters[FACTS.sizes]) == sizes
    logsumexp = struct.unpack("<Q3i4xqq", launch.parameters[FACTS.logsumexp])
    assert logsumexp[1:] == (*sizes, 193, 3 * 193)
    unread = {launch.parameters[index] for index in (0, 7)}
    assert unread == {bytes(12), bytes(1)}
    # Rows of 3 heads x 128 channels x 2 bytes.
    query = ((128, 193, 3, 2), (768, 256, 193 * 768), (64, 192, 1, 1))
    cache = ((128, 300, 3, 2), (768, 256, 300 * 768), (64, 112, 1, 1))
    maps = {
        name: recorder.maps[launch.addresses[getattr(FACTS, name)]]
        for name in ("query", "key", "value", "output")
    }
    assert maps == {
        "query": (given["query"].data_ptr(), torch.bfloat16, *query),
        "key": (given["key"].data_ptr(), torch.bfloat16, *cache),
        "value": (given["value"].data_ptr(), torch.bfloat16, *cache),
        "output": (output.data_ptr(), torch.bfloat16, *query),
    }


def test_last_queries_run_on_halves_of_the_keys(recorder, monkeypatch):
    """Ten tiles of one row on eight processors: two are left, which four tiles do in half."""
    monkeypatch.setattr(module, "split_from", lambda *sizes: 8 if sizes == (10, 1, 20, 132) else 0)
    given = tensors(batch=1, tokens=9 * FACTS.tile_m + 5, slots=20, heads=1, length=13)
    output = flash_attention_sm90(**given)
    whole, rest = recorder.launches
    assert (whole.grid, rest.grid) == ((8, 1, 1), (2, 1, 2))
    left = FACTS.tile_m + 5
    maps = [
        {name: recorder.maps[launch.addresses[getattr(FACTS, name)]] for name in ("query", "key")}
        for launch in (whole, rest)
    ]
    assert [m["query"][2] for m in maps] == [(128, 9 * FACTS.tile_m + 5, 1, 1), (128, left, 1, 2)]
    assert [m["key"][2] for m in maps] == [(128, 20, 1, 1), (128, 10, 1, 2)]
    assert [m["key"][0] for m in maps] == [given["key"].data_ptr()] * 2
    assert struct.unpack("<3i", rest.parameters[FACTS.sizes]) == (left, 1, 2)
    assert output.shape == given["query"].shape


@pytest.mark.parametrize("batch", [1, 3])
def test_valid_length_is_repeated_per_batch_row(recorder, monkeypatch, batch):
    seen = []

    def launch(grid, threads, parameters):
        address, size = struct.unpack("<Qq", ctypes.string_at(parameters[FACTS.lengths], 16))
        seen.append((size, struct.unpack(f"<{batch}i", ctypes.string_at(address, 4 * batch))))

    monkeypatch.setattr(recorder, "launch", launch)
    flash_attention_sm90(**tensors(batch=batch, length=7))
    assert seen == [(batch, (7,) * batch)]


@given(
    batch=st.integers(1, 3), rows=st.integers(1, 10**5), heads=st.integers(1, 40),
    head_dim=st.sampled_from([64, 128]), tile=st.sampled_from([112, 128, 192]),
)  # fmt: skip
def test_tensor_map_covers_every_element(batch, rows, heads, head_dim, tile):
    made = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TensorMap", made.tensor_map)
        module._tensor_map.cache_clear()
        module._tensor_map(4096, torch.float16, batch, rows, heads, head_dim, tile)
        module._tensor_map.cache_clear()
    ((address, _, sizes, strides, box),) = made.maps.values()
    strides = (2, *strides)
    shape = torch.empty(batch, rows, heads, head_dim, dtype=torch.float16, device="meta")
    channel, row, head, item = (size - 1 for size in sizes)
    last = 2 * sum(i * s for i, s in zip((item, row, head, channel), shape.stride(), strict=True))
    assert sizes == (head_dim, rows, heads, batch)
    assert sum(i * s for i, s in zip((channel, row, head, item), strides, strict=True)) == last
    assert last + 2 == 2 * shape.numel()
    assert all(stride % 16 == 0 for stride in strides[1:])
    assert address == 4096
    assert box[0] * 2 == 128
    assert box[1:] == (tile, 1, 1)


def test_tensor_maps_are_cached(recorder):
    given = tensors()
    kept = [flash_attention_sm90(**given) for _ in range(3)]
    addresses = {address for address, *_ in recorder.maps.values()}
    assert len(recorder.maps) == len(addresses) == 3 + len(kept)


def test_tensor_map_cache_distinguishes_sizes(recorder):
    memory = torch.zeros(2 * 6 * 4 * 128, dtype=torch.bfloat16)
    for shape in ((2, 6, 4, 128), (2, 4, 6, 128)):
        query = memory.view(shape)
        flash_attention_sm90(query, query, query, torch.tensor([1]))
    sizes = {
        sizes for address, _, sizes, *_ in recorder.maps.values() if address == query.data_ptr()
    }
    assert sizes == {(128, 6, 4, 2), (128, 4, 6, 2)}


def changed(name, change):
    given = tensors()
    return given | {name: change(given[name])}


def misaligned(tensor):
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)


def not_contiguous(tensor):
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


SHAPES = {
    "query of 3 dimensions": ("query", lambda t: t[0], r"\[B, T, H, D\]", r"\[5, 3, 128\]"),
    "query in float32": ("query", lambda t: t.float(), "bfloat16 or float16", "float32"),
    "key of 3 dimensions": ("key", lambda t: t[0], r"\[2, S, 3, 128\]", r"\[9, 3, 128\]"),
    "key of another batch": ("key", lambda t: t[:1], r"\[2, S, 3, 128\]", r"\[1, 9, 3, 128\]"),
    "key of other heads": ("key", lambda t: t[:, :, :2], r"\[2, S, 3, 128\]", r"\[2, 9, 2, 128\]"),
    "value of other slots": ("value", lambda t: t[:, :4], r"\[2, 9, 3, 128\]", r"\[2, 4, 3, 128\]"),
    "key in float16": ("key", lambda t: t.half(), "bfloat16", "float16"),
    "value in float16": ("value", lambda t: t.half(), "bfloat16", "float16"),
    "two lengths": ("valid_length", lambda t: t.expand(2), r"\[1\]", r"\[2\]"),
    "a length in int32": ("valid_length", lambda t: t.int(), "int64", "int32"),
    "an empty query": ("query", lambda t: t[:, :0], r"\[B, T, H, D\]", r"\[2, 0, 3, 128\]"),
}  # fmt: skip
MEMORY = {
    f"{name}: {what}": (name, change, expected, found)
    for name in ("query", "key", "value")
    for what, change, expected, found in (
        ("not contiguous", not_contiguous, "a contiguous tensor", "strides"),
        ("misaligned", misaligned, "aligned to 16 bytes", "0x"),
    )
} | {
    "key elsewhere": ("key", lambda t: t.to("meta"), "query's device cpu", "meta"),
    "value elsewhere": ("value", lambda t: t.to("meta"), "query's device cpu", "meta"),
    "length elsewhere": ("valid_length", lambda t: t.to("meta"), "query's device cpu", "meta"),
}


def refused(call, name, expected, found):
    message = f"vidc::flash_attention_sm90: {name}: expected .*{expected}.*, found .*{found}"
    with pytest.raises(UsageError, match=message) as caught:
        call()
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"


@pytest.mark.parametrize(("name", "change", "expected", "found"), SHAPES.values(), ids=SHAPES)
def test_rejects_shape_or_dtype_also_in_the_fake(recorder, name, change, expected, found):
    given = changed(name, change)
    refused(lambda: flash_attention_sm90(**given), name, expected, found)
    traced = {key: tensor.to("meta") for key, tensor in given.items()}
    refused(lambda: flash_attention_sm90(**traced), name, expected, found)
    assert recorder.launches == []


@pytest.mark.parametrize(("name", "change", "expected", "found"), MEMORY.values(), ids=MEMORY)
def test_rejects_unaligned_or_strided_memory(recorder, name, change, expected, found):
    given = changed(name, change)
    refused(lambda: module.flash_attention(**given), name, expected, found)
    assert recorder.launches == []


def test_missing_kernel_error_lists_the_loaded_kernels(recorder):
    with pytest.raises(UnavailableError) as caught:
        flash_attention_sm90(**tensors(head_dim=64))
    assert caught.value.code == "VIDC-KERNEL-MISSING"
    assert "bfloat16 x 128 on cpu, float16 x 64 on cpu" in caught.value.message
    assert "found bfloat16 x 64 on cpu" in caught.value.message
    module._LOADED.clear()
    with pytest.raises(UnavailableError, match="none is loaded"):
        flash_attention_sm90(**tensors())


def test_facts_round_trip_through_json():
    assert LaunchFacts.from_json(json.loads(json.dumps(FACTS.to_json()))) == FACTS


WRONG = {
    "a field missing": {"symbol": ...},
    "an unknown field": {"tile_k": 64},
    "another dtype": {"dtype": "float32"},
    "no dtype": {"dtype": "half"},
    "no symbol": {"symbol": None},
    "a size as text": {"tile_m": "128"},
    "a size of 0": {"threads": 0},
    "a negative size": {"shared_bytes": -1},
    "true for a size": {"tile_n": True},
    "an index beyond the parameters": {"scale": 10},
    "a negative index": {"scale": -1},
    "two things in one parameter": {"scale": 4},
    "a factor without a capacity": {"log2e": 0},
    "a capacity without a factor": {"capacity": 0},
    "a capacity as text": {"log2e": 0, "capacity": "7"},
    "capability as text": {"capability": ["9", "0"]},
    "no list of parameters": {"parameter_bytes": 17},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_rejects_invalid_facts(tmp_path, change):
    values = FACTS.to_json() | change
    values = {name: value for name, value in values.items() if value is not ...}
    (tmp_path / "kernel.cubin").write_bytes(b"code")
    (tmp_path / "kernel.json").write_text(json.dumps(values))
    with pytest.raises(
        GateError, match=r"kernel\.cubin cannot be loaded with kernel\.json"
    ) as caught:
        load_kernel(tmp_path / "kernel.cubin")
    assert caught.value.code == "VIDC-KERNEL-FACTS"


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "\0"])
def test_rejects_file_without_facts(tmp_path, text):
    (tmp_path / "kernel.cubin").write_bytes(b"code")
    (tmp_path / "facts.json").write_text(text)
    with pytest.raises(GateError) as caught:
        load_kernel(tmp_path / "kernel.cubin", tmp_path / "facts.json")
    assert caught.value.code == "VIDC-KERNEL-FACTS"


@pytest.mark.parametrize("missing", ["kernel.cubin", "kernel.json"])
def test_missing_kernel_file_is_named(tmp_path, missing):
    (tmp_path / "kernel.cubin").write_bytes(b"code")
    (tmp_path / "kernel.json").write_text(json.dumps(FACTS.to_json()))
    (tmp_path / missing).unlink()
    with pytest.raises(GateError, match=missing) as caught:
        load_kernel(tmp_path / "kernel.cubin")
    assert caught.value.code == "VIDC-KERNEL-FACTS"


@pytest.fixture
def saved(tmp_path):
    (tmp_path / "kernel.json").write_text(json.dumps(FACTS.to_json()))
    (tmp_path / "kernel.cubin").write_bytes(b"code")
    return tmp_path / "kernel.cubin"


@pytest.fixture
def device(monkeypatch):
    """A CUDA device of compute capability 9.0, on which a kernel loads at once."""
    loads = []

    def kernel(code, symbol, shared_bytes, index):
        loads.append((code, symbol, shared_bytes, index))

    monkeypatch.setattr(module, "_LOADED", {})
    monkeypatch.setattr(module, "Kernel", kernel)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    return loads


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_load_kernel_needs_a_gpu(saved):
    with pytest.raises(UnavailableError, match="no CUDA device") as caught:
        load_kernel(saved)
    assert caught.value.code == "VIDC-KERNEL-DRIVER"


def test_rejects_kernel_for_another_gpu(saved, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (10, 0))
    with pytest.raises(
        UnavailableError, match=r"kernel.cubin .* 9\.0, this one has 10\.0"
    ) as caught:
        load_kernel(saved)
    assert caught.value.code == "VIDC-KERNEL-GPU"
    assert device == []


def test_kernel_is_loaded_once_per_device(saved, device):
    for where in (None, 1, torch.device("cuda"), torch.device("cuda", 1), torch.device("cuda", 0)):
        load_kernel(saved, device=where)
    assert device == [(b"code", "attend", 1000, 1), (b"code", "attend", 1000, 0)]
    assert set(module._LOADED) == {
        (torch.bfloat16, 128, torch.device("cuda", index), False) for index in (0, 1)
    }


def test_new_kernel_replaces_the_loaded_one(saved, device):
    load_kernel(saved)
    saved.write_bytes(b"newer code")
    load_kernel(saved)
    assert [code for code, *_ in device] == [b"code", b"newer code"]
    (loaded,) = module._LOADED.values()
    assert loaded.code == b"newer code"
