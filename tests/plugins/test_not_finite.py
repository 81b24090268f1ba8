"""NaN and infinity reach exactly the dependent outputs, in references and in kernels on a CPU."""

import math

import held
import pytest
import torch
from fused_on_cpu import Kernels
from operators import FLOATS, FP8, Ring, gelu_arguments, qkv_arguments
from operators_8bit import arguments as to_8bit_arguments

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.transposed_values import stored_at

CPU = torch.device("cpu")
NAN, INF = torch.nan, torch.inf
RING = Ring(batch=2, tokens=5, heads=3, head_dim=64, window=16, sink=3, position=10)
TOKEN = 2
"""The token of batch row 1 with a value that is not finite."""
bad_numbers = pytest.mark.parametrize("bad", [NAN, INF, -INF])


@pytest.fixture(scope="module", params=["reference", "kernels"])
def form(request):
    """Returns the implementation of an operator."""
    if request.param == "reference":
        return lambda operator: operator
    return Kernels(request.getfixturevalue("built_for_cpu")).operator


def spoiled(found: torch.Tensor) -> torch.Tensor:
    return ~torch.isfinite(found.float())


def only_at(found: torch.Tensor, *index) -> None:
    """Checks that only these elements are not finite."""
    wanted = torch.zeros(found.shape, dtype=torch.bool)
    wanted[index] = True
    assert torch.equal(spoiled(found), wanted)


@pytest.mark.parametrize("output", [*FLOATS, FP8])
def test_gelu_quantize(form, output):
    taken = gelu_arguments(2, 3, 24, torch.float16, output)
    for channel, bad in enumerate((NAN, INF)):
        taken["x"][1, TOKEN, channel] = bad
    found = form(gelu_quantize)(*taken.values())
    if output is FP8:  # It has no infinity, and its largest number stands for what is larger.
        only_at(found, 1, TOKEN, 0)
        assert found[1, TOKEN, 1].item() == 448
    else:
        only_at(found, 1, TOKEN, slice(0, 2))


def with_bad(taken, part, bad):
    """Arguments with a bad value in one channel of a token's queries, keys or values."""
    taken["qkv"][1, TOKEN, part * RING.width + 7] = bad
    return taken


@bad_numbers
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("part", range(3), ids=["query", "key", "value"])
def test_ring_write(form, part, dtype, bad):
    taken = with_bad(qkv_arguments(RING, dtype, 1), part, bad)
    query, after = held.run(form(qk_norm_rope_ring_write), taken, CPU)
    slot = int(RING.slots()[TOKEN])
    # An infinite norm makes zeros of the others, and a pair of channels is turned together.
    spread = () if math.isnan(bad) else (0, slice(6, 8))
    where = [(1, TOKEN, *spread), (1, slot, *spread), (1, slot, 0, 7)]
    for i, found in enumerate((query, after["key_cache"], after["value_cache"])):
        if i == part:
            only_at(found, *where[i])
        else:
            assert not spoiled(found).any()


@pytest.mark.parametrize("part", range(3), ids=["query", "key", "value"])
def test_ring_write_fp8(form, part):
    taken = with_bad(to_8bit_arguments(RING), part, NAN)
    (query, query_scale), after = held.run(form(qk_norm_rope_ring_write_static), taken, CPU)
    slot = int(RING.slots()[TOKEN])
    value = after["value_cache"].view(torch.uint8)[..., stored_at(torch.arange(RING.window))]
    value = value.permute(0, 3, 1, 2).contiguous().view(FP8)
    stored = [query[1, TOKEN], after["key_cache"][1, slot], value[1, slot, 0, 7]]
    assert spoiled(stored[part]).all()
    bad = sum(int(spoiled(each).sum()) for each in (query, after["key_cache"], value))
    assert bad == stored[part].numel()
    assert bool(spoiled(query_scale).any()) == (part == 0)


@bad_numbers
@pytest.mark.parametrize("to", [FP8, torch.int8], ids=str)
def test_query_scale_keeps_nan_and_infinity(form, to, bad):
    """INT8 has neither NaN nor infinity, so the scale carries them."""
    taken = with_bad(to_8bit_arguments(RING, to=to), 0, bad)
    (_, query_scale), _ = held.run(form(qk_norm_rope_ring_write_static), taken, CPU)
    heads = slice(None) if math.isnan(bad) else 0  # A norm spans all heads.
    only_at(query_scale, 1, heads, TOKEN)
