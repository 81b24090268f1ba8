"""Distribution of tiles over persistent CTAs: the kernel's header, compiled for the CPU."""

import ctypes
import itertools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc import plugins

HEADER = Path(next(iter(plugins.__path__))) / "cuda" / "stream_k.cuh"
MAX_PARTS = 16
SLOTS = 2

SOURCE = """
#include "stream_k.cuh"
extern "C" int segment(int tiles, int length, int ctas, int cta, int index, int* out) {
  vidc::Segment found;
  if (!vidc::StreamK(tiles, length, ctas).segment(cta, index, found)) return 0;
  const int values[] = {found.tile, found.begin, found.end, found.slot, found.first, found.last};
  for (int i = 0; i < 6; ++i) out[i] = values[i];
  return 1;
}
extern "C" int slot(int tiles, int length, int ctas, int cta, int tile) {
  return vidc::StreamK(tiles, length, ctas).slot(cta, tile);
}
"""


@dataclass(frozen=True)
class Segment:
    tile: int
    begin: int
    end: int
    slot: int
    first: int
    last: int


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("stream_k")
    (folder / "stream_k.cpp").write_text(SOURCE)
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    include = f"-I{HEADER.parent}"
    command = [compiler, *flags, include, "stream_k.cpp", "-o", "stream_k.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "stream_k.so"))


def segments(library, tiles, length, ctas, cta):
    out = (ctypes.c_int * 6)()
    for index in itertools.count():
        if not library.segment(tiles, length, ctas, cta, index, out):
            return
        yield Segment(*out)


def check(library, tiles, length, ctas):
    parts = {tile: [] for tile in range(tiles)}
    for cta in range(ctas):
        own = list(segments(library, tiles, length, ctas, cta))
        work = sum(segment.end - segment.begin for segment in own)
        most = -(-tiles * length // ctas)
        # Tiles are shared by so few CTAs that one can put them together: the others have none.
        assert work <= max(most, tiles // ctas * length + -(-length // MAX_PARTS)) + 1
        for segment in own:
            parts[segment.tile].append((cta, segment))
    slots = []
    for tile, found in parts.items():
        found.sort(key=lambda part: part[1].begin)
        covered = [(segment.begin, segment.end) for _, segment in found]
        assert covered[0][0] == 0
        assert covered[-1][1] == length
        assert all(begin < end for begin, end in covered)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(covered))
        ctas_of_tile = [cta for cta, _ in found]
        for cta, segment in found:
            assert (segment.first, segment.last) == (ctas_of_tile[0], ctas_of_tile[-1])
            if len(found) == 1:
                assert segment.slot == -1
                continue
            # Whoever puts the tile together visits all from the first to the last.
            assert ctas_of_tile == list(range(segment.first, segment.last + 1))
            assert len(found) <= MAX_PARTS + 1
            assert segment.slot == library.slot(tiles, length, ctas, cta, tile)
            assert 0 <= segment.slot < ctas * SLOTS
            slots.append(segment.slot)
    assert len(slots) == len(set(slots))


@pytest.mark.parametrize(
    ("tiles", "length"),
    [
        (444, 147), (444, 1), (888, 37), (12, 147), (1, 147), (1, 1), (132, 5), (133, 147),
        (263, 3), (2, 4), (30, 4), (131, 1),
    ],
)  # fmt: skip
def test_every_key_block_is_processed_once(library, tiles, length):
    check(library, tiles, length, 132)


@given(tiles=st.integers(1, 300), length=st.integers(1, 40), ctas=st.integers(1, 140))
def test_any_work_is_distributed(library, tiles, length, ctas):
    check(library, tiles, length, ctas)


def test_whole_waves_are_not_split(library):
    found = list(segments(library, 444, 147, 132, 5))
    whole = [segment for segment in found if segment.slot == -1]
    assert [(segment.begin, segment.end) for segment in whole] == [(0, 147)] * 3
    assert [segment.tile for segment in whole] == [48 + 5, 48 + 132 + 5, 48 + 264 + 5]
    # 48 tiles over 132 CTAs: a bit more than a third of a tile each, and first.
    shared = [segment for segment in found if segment.slot >= 0]
    assert found[: len(shared)] == shared
    assert sum(segment.end - segment.begin for segment in shared) in (53, 54)
