"""Attention over a ring of 16 bits on any GPU: the operator, and its kernel by its C interface.

``VIDC_TEST_PLUGINS`` is the folder where another machine built ``libvidc_ring_attention.so``; its
folders ``turing`` and ``ampere`` have the same for sm_75 and sm_80 alone, which a newer GPU runs by
their PTX.
"""

import ctypes
import os
from pathlib import Path

import pytest
import torch
from attention_16bit import arguments, attending, held
from captured import captured
from operators import on

from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit

CUDA = torch.device("cuda", 0)
OPERATOR = "vidc::ring_attention_16bit"
FILE = "libvidc_ring_attention.so"
FILES = (FILE, f"turing/{FILE}", f"ampere/{FILE}")
both = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(scope="module", params=[OPERATOR, *FILES])
def attend(request, gpu):
    if request.param == OPERATOR:
        request.getfixturevalue("library")
        return ring_attention_16bit
    given = os.environ.get("VIDC_TEST_PLUGINS")
    if not given or not (Path(given) / request.param).exists():
        pytest.skip(f"VIDC_TEST_PLUGINS names no folder with {request.param}")
    function = ctypes.CDLL(str(Path(given) / request.param)).vidc_ring_attention_16bit
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return attending(lambda given: function(given, torch.cuda.current_stream().cuda_stream))


@both
@pytest.mark.parametrize(
    ("queries", "slots", "heads", "head_dim", "batch"),
    [(1, 300, 1, 128, 1), (140, 500, 3, 64, 2), (300, 4680, 3, 128, 1), (4680, 1500, 1, 64, 1)],
)
def test_matches_attention_to_the_valid_slots(
    attend, dtype, queries, slots, heads, head_dim, batch
):
    for valid in (-1, 0, 1, 63, 65, slots - 3, slots, slots + 1):
        for peak in (1.0, 30.0):
            taken = arguments(batch, queries, heads, head_dim, slots, valid, dtype, peak=peak)
            held(attend, taken, CUDA)


@both
def test_at_the_sizes_of_longlive(attend, dtype):
    held(attend, arguments(1, 4680, 2, 128, 18720, 18720, dtype), CUDA)


@both
def test_one_graph_serves_every_length(attend, dtype):
    given = on(CUDA, arguments(2, 140, 3, 64, 500, 500, dtype))
    graph, found = captured(lambda: attend(*given.values()))
    for slots in (1, 64, 130, 333, 500, 0, -5, 501, 2**40):
        given["valid_length"].fill_(slots)
        wanted = attend(*given.values())
        found.fill_(torch.nan)
        graph.replay()
        assert torch.equal(found, wanted), slots


@both
def test_is_deterministic(attend, dtype):
    given = on(CUDA, arguments(2, 700, 3, 128, 1500, 1499, dtype))
    wanted = attend(*given.values())
    assert all(torch.equal(attend(*given.values()), wanted) for _ in range(20))


@both
def test_invalid_slots_do_not_affect_the_output(attend, dtype):
    given = on(CUDA, arguments(1, 70, 2, 128, 140, 101, dtype))
    wanted = attend(*given.values())
    for ring in ("key_cache", "value_cache"):
        given[ring][:, 101:] = torch.nan
    assert torch.equal(attend(*given.values()), wanted)
