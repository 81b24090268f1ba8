"""Checks, without a GPU, of the programs that run under compute-sanitizer."""

import re
import shutil
import subprocess

import planted_race
import pytest
from operators import Ring
from sanitizer_cases import RINGS, clips, ring_writes, rows


@pytest.mark.parametrize("calls", [rows, ring_writes, clips])
def test_calls_are_valid_on_references(calls):
    """Runs the calls on a CPU, by the references."""
    for operator, taken in calls():
        if max(v.numel() for v in taken.values() if hasattr(v, "numel")) < 10_000:
            operator(*taken.values())


def test_calls_cover_one_and_many_warps():
    widths: dict[str, set[int]] = {}
    for operator, taken in (*rows(), *ring_writes()):
        first = next(iter(taken.values()))
        width = first.shape[-1] // (3 if "qkv" in taken else 1)
        widths.setdefault(operator.name(), set()).add(width)
    assert len(widths) == 3
    for name, found in widths.items():
        assert min(found) <= 256, name
        assert {1536, 8192} <= found, name
    assert {ring.head_dim for ring in RINGS} == {32, 64, 128}


def wraps(ring: Ring) -> bool:
    return sorted(ring.slots().tolist()) != ring.slots().tolist()


def test_calls_cover_wrap_and_sink():
    assert any(wraps(ring) for ring in RINGS)
    assert any(ring.position < ring.sink for ring in RINGS)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_planted_race_removes_a_barrier(tmp_path):
    barriers = []
    for race in (False, True):
        folder = tmp_path / str(race)
        folder.mkdir()
        source = planted_race.sources(folder, race)
        command = ["nvcc", "-std=c++17", "-arch=sm_75", "-ptx", source, "-o", folder / "race.ptx"]
        subprocess.run(command, check=True, timeout=300)
        barriers.append(len(re.findall(r"\bbar(rier)?\.", (folder / "race.ptx").read_text())))
    assert barriers == [1, 0]
