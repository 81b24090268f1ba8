"""The operator's numbers with a kernel in torch, which reads and writes where it is told to."""

import ctypes
import math
import struct

import pytest
import torch

from vidc.plugins.ops import flash_attention as module
from vidc.plugins.ops.flash_attention import LaunchFacts, flash_attention_sm90
from vidc.plugins.ops.key_split import LEAST_KEYS
from vidc.plugins.ops.ring import ring_attention_reference

FACTS = LaunchFacts(
    symbol="attend", dtype="float16", head_dim=64, capability=(9, 0), tile_m=8, tile_n=8,
    threads=128, shared_bytes=1000, parameter_bytes=(12, 40, 16, 128, 128, 128, 128, 4),
    sizes=0, logsumexp=1, lengths=2, query=3, key=4, value=5, output=6, scale=7,
)  # fmt: skip
PROCESSORS = 8


def at(address, dtype, *shape):
    """The contiguous tensor that lies there."""
    size = math.prod(shape) * dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).view(shape)


class TensorMap:
    def __init__(self, address, dtype, sizes, strides, box):
        self._parameter = ctypes.create_string_buffer(128)
        self.address = ctypes.addressof(self._parameter)
        channels, rows, heads, batch = sizes
        self.tensor = at(address, dtype, batch, rows, heads, channels)


class TorchKernel:
    """Attention of the tiles of a grid; where tensors lie is taken from the parameters only."""

    def __init__(self):
        self.maps = {}
        self.grids = []

    def tensor_map(self, *description, **more):
        made = TensorMap(*description, **more)
        self.maps[made.address] = made.tensor
        return made

    def launch(self, grid, threads, parameters):
        self.grids.append(grid)

        def read(index, layout):
            return struct.unpack(
                layout, ctypes.string_at(parameters[index], struct.calcsize(layout))
            )

        tokens, heads, batch = read(FACTS.sizes, "<3i")
        assert grid[1:] == (heads, batch)
        address, *sizes = read(FACTS.logsumexp, "<Q3i4xqq")
        assert sizes == [tokens, heads, batch, tokens, heads * tokens]
        logsumexps = at(address, torch.float32, batch, heads, tokens)
        address, size = read(FACTS.lengths, "<Qq")
        assert size == batch
        lengths = at(address, torch.int32, batch).tolist()
        (scale,) = read(FACTS.scale, "<f")
        tensors = (FACTS.query, FACTS.key, FACTS.value, FACTS.output)
        query, key, value, output = (self.maps[parameters[index]] for index in tensors)
        done = slice(0, grid[0] * FACTS.tile_m)
        for row, length in enumerate(lengths):
            queries, keys = query[row, done].float(), key[row, :length].float()
            logits = torch.einsum("thd,shd->hts", queries, keys) * scale * math.log(2)
            mixed = torch.einsum("hts,shd->thd", logits.softmax(-1), value[row, :length].float())
            logsumexps[row, :, done] = logits.logsumexp(-1)
            output[row, done] = mixed.to(output.dtype)


@pytest.fixture
def kernel(monkeypatch):
    made = TorchKernel()
    key = (torch.float16, 64, torch.device("cpu"))
    monkeypatch.setattr(module, "_LOADED", {key: module._Loaded(made, FACTS, b"", PROCESSORS)})
    monkeypatch.setattr(module, "TensorMap", made.tensor_map)
    module._tensor_map.cache_clear()
    yield made
    module._tensor_map.cache_clear()


def between_nan(*shape):
    """Random, contiguous, and NaN in the memory around it: no place to read."""
    count = math.prod(shape)
    memory = torch.full((3 * count,), torch.nan, dtype=torch.float16)
    inner = memory[count : 2 * count].view(shape)
    return inner.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(count)))


HALF = LEAST_KEYS // 2


@pytest.mark.parametrize("valid", [1, HALF, HALF + 1, 2 * HALF])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "grids"),
    [
        (1, 75, 1, [(8, 1, 1), (2, 1, 2)]),
        (2, 37, 1, [(4, 1, 2), (1, 1, 4)]),
        (1, 11, 2, [(2, 2, 2)]),
        (2, 5, 2, [(1, 2, 4)]),
        (1, 64, 1, [(8, 1, 1)]),
    ],
)
def test_merged_halves_equal_full_attention(kernel, batch, tokens, heads, grids, valid):
    query, key, value = (between_nan(batch, n, heads, 64) for n in (tokens, 2 * HALF, 2 * HALF))
    length = torch.tensor([valid])
    output = flash_attention_sm90(query, key, value, length)
    assert kernel.grids == grids
    expected = ring_attention_reference(query.float(), key.float(), value.float(), length)
    torch.testing.assert_close(output.float(), expected, atol=2e-3, rtol=2e-3)
