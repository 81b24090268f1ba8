"""The portable attention kernel on any GPU, by its C interface, a Hopper's too.

``VIDC_TEST_PLUGINS`` is the folder where another machine built ``libvidc_ring_attention.so``, and
its folder ``turing`` has the same for sm_75 alone, which a newer GPU runs by its PTX.
"""

import ctypes
import os
from pathlib import Path

import held
import pytest
import torch
from captured import captured
from operators import FP8, on
from operators_8bit import attention_arguments
from portable_attention import OF_WEIGHTS, attending

CUDA = torch.device("cuda", 0)
FORMATS = (FP8, torch.int8)
FILE = "libvidc_ring_attention.so"


@pytest.fixture(scope="module", params=[FILE, f"turing/{FILE}"])
def attend(request, gpu):
    given = os.environ.get("VIDC_TEST_PLUGINS")
    if not given or not (Path(given) / request.param).exists():
        pytest.skip(f"VIDC_TEST_PLUGINS names no folder with {request.param}")
    function = ctypes.CDLL(str(Path(given) / request.param)).vidc_ring_attention_portable
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return attending(lambda given: function(given, torch.cuda.current_stream().cuda_stream))


@pytest.mark.parametrize("output", [torch.bfloat16, torch.float16, FP8], ids=str)
@pytest.mark.parametrize("of", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("queries", "slots", "heads", "head_dim", "batch"),
    [(1, 300, 1, 128, 1), (140, 500, 3, 64, 2), (300, 4680, 3, 128, 1), (4680, 1500, 1, 64, 1)],
)
def test_matches_attention_of_dequantized_tensors(
    attend, of, output, queries, slots, heads, head_dim, batch
):
    for valid in (1, 63, 65, slots - 3, slots):
        sizes = (batch, queries, heads, head_dim, slots, -(-slots // 16) * 16)
        taken = attention_arguments(*sizes, valid, of, output)
        held.attention(taken, CUDA, attend, OF_WEIGHTS)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_at_the_sizes_of_longlive(attend, of):
    taken = attention_arguments(1, 4680, 2, 128, 18720, 18720, 18720, of)
    held.attention(taken, CUDA, attend, OF_WEIGHTS)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_one_graph_serves_every_length(attend, of):
    given = on(CUDA, attention_arguments(2, 140, 3, 64, 500, 512, 500, of))
    graph, found = captured(lambda: attend(*given.values()))
    for slots in (1, 64, 130, 333, 500, 0, -5, 501, 2**40):
        given["valid_length"].fill_(slots)
        wanted = attend(*given.values())
        found.fill_(torch.nan)
        graph.replay()
        assert torch.equal(found, wanted), slots


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_invalid_slots_do_not_affect_the_output(attend, of):
    given = on(CUDA, attention_arguments(1, 70, 2, 128, 140, 144, 101, of))
    wanted = attend(*given.values())
    given["key_cache"].view(torch.uint8)[:, 101:] = 0x7F
    given["value_cache"].view(torch.uint8)[..., 112:] = 0x7F
    assert torch.equal(attend(*given.values()), wanted)
