"""FlashAttention-4's kernel in torch, which reads and writes where its parameters tell it to."""

import ctypes
import math
import struct

import torch

from vidc.plugins.ops import flash_attention as module
from vidc.plugins.ops.flash_attention import LaunchFacts

CPU = torch.device("cpu")


def at(address, dtype, *shape):
    """The contiguous tensor that lies there."""
    size = math.prod(shape) * dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).view(shape)


def between_nan(*shape):
    """Random, contiguous, and NaN in the memory around it: no place to read."""
    count = math.prod(shape)
    memory = torch.full((3 * count,), torch.nan, dtype=torch.float16)
    inner = memory[count : 2 * count].view(shape)
    return inner.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(count)))


class TensorMap:
    def __init__(self, address, dtype, sizes, strides, box):
        self._parameter = ctypes.create_string_buffer(128)
        self.address = ctypes.addressof(self._parameter)
        channels, rows, heads, batch = sizes
        self.tensor = at(address, dtype, batch, rows, heads, channels)


class TorchKernel:
    """Attention of the tiles of a grid; where tensors lie is taken from the parameters only."""

    def __init__(self, facts: LaunchFacts) -> None:
        self.facts = facts
        self.maps = {}
        self.grids = []

    def install(self, monkeypatch, processors: int) -> None:
        """Loads it on the CPU."""
        facts = self.facts
        key = (torch.float16, facts.head_dim, CPU, facts.merges_padding)
        monkeypatch.setattr(module, "_LOADED", {key: module._Loaded(self, facts, b"", processors)})
        monkeypatch.setattr(module, "TensorMap", self.tensor_map)
        module._tensor_map.cache_clear()

    def tensor_map(self, *description, **more):
        made = TensorMap(*description, **more)
        self.maps[made.address] = made.tensor
        return made

    def launch(self, grid, threads, parameters):
        facts = self.facts
        self.grids.append(grid)

        def read(index, layout):
            return struct.unpack(
                layout, ctypes.string_at(parameters[index], struct.calcsize(layout))
            )

        tokens, heads, batch = read(facts.sizes, "<3i")
        assert grid[1:] == (heads, batch)
        address, *sizes = read(facts.logsumexp, "<Q3i4xqq")
        assert sizes == [tokens, heads, batch, tokens, heads * tokens]
        logsumexps = at(address, torch.float32, batch, heads, tokens)
        address, size = read(facts.lengths, "<Qq")
        assert size == batch
        lengths = at(address, torch.int32, batch).tolist()
        (scale,) = read(facts.scale, "<f")
        # A kernel that merges padding multiplies by this after it adds the logarithm.
        base = read(facts.log2e, "<f")[0] if facts.merges_padding else 1.0
        tensors = (facts.query, facts.key, facts.value, facts.output)
        query, key, value, output = (self.maps[parameters[index]] for index in tensors)
        done = slice(0, grid[0] * facts.tile_m)
        for row, length in enumerate(lengths):
            queries, keys = query[row, done].float(), key[row, :length].float()
            logits = torch.einsum("thd,shd->hts", queries, keys) * scale
            if facts.merges_padding:
                (capacity,) = read(facts.capacity, "<i")
                logits[..., -1] += math.log(capacity - length + 1)
            logits = logits * base * math.log(2)
            mixed = torch.einsum("hts,shd->thd", logits.softmax(-1), value[row, :length].float())
            logsumexps[row, :, done] = logits.logsumexp(-1)
            output[row, done] = mixed.to(output.dtype)
