"""One process that loads, plays and closes bundles in rounds holds no more as time goes by.

``pytest tests/fuzz/test_soak.py --soak-rounds 1000 --fuzz-seed 7`` runs as many rounds as wanted,
and ``--fuzz-bundle FOLDER`` runs them on a bundle that was built.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import soak
from small_bundle import save_bundle

BOUNDS = {"bytes": 2**15, "other mappings": 0.1, "shared memory": 0.5}
"""Most that a round may add, of each kind: nothing by default.

The kernel splits and joins mappings without a name. Shared memory is that of all processes.
"""


def growth(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns what a round adds after the warm-up, by kind.

    It is the smaller of two differences, between the medians of three thirds of the rounds: what
    is made once and kept grows in one of them alone.
    """
    warm = [each["held"] for each in rounds[soak.WARM_UP :]]
    size = len(warm) // 3
    found = {}
    for kind in warm[0]:
        counts = [each[kind] for each in warm]
        first, middle, last = (median(counts[n * size : (n + 1) * size]) for n in range(3))
        found[kind] = min(middle - first, last - middle) / size
    return found


def leaks(rounds: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Returns a message for each kind of which the process holds more and more."""
    return {
        kind: f"{added:.3g} more {kind} a round: {rounds[-1]['more'].get(kind)}"[:2000]
        for kind, added in growth(rounds).items()
        if added > BOUNDS.get(kind, 0)
    }


pytestmark = pytest.mark.deep


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs rounds on a bundle and returns what each played and left."""

    def go(bundle: Path | None, rounds: int, *arguments: str) -> list[dict[str, Any]]:
        if bundle is None:
            bundle = tmp_path / "small"
            save_bundle(bundle)
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        seed = request.config.getoption("--fuzz-seed")
        command = [
            sys.executable, soak.__file__, str(bundle), str(seed), str(rounds), *arguments
        ]  # fmt: skip
        # Each thread's own arena fills up for many rounds before it stays as large.
        changed = {"TMPDIR": str(temporary), "MALLOC_ARENA_MAX": "1"}
        done = subprocess.run(command, env=os.environ | changed, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert [each.name for each in temporary.iterdir() if each.name.startswith("vidc")] == []
        return [json.loads(line) for line in done.stdout.splitlines()]

    return go


def test_a_process_that_loads_and_plays_again_and_again_holds_no_more(
    run: Callable[..., list[dict[str, Any]]], request: pytest.FixtureRequest
) -> None:
    rounds = run(
        request.config.getoption("--fuzz-bundle"), request.config.getoption("--soak-rounds")
    )
    print({kind: round(added, 3) for kind, added in growth(rounds).items()})
    others = [n for n, each in enumerate(rounds) if each["played"] != rounds[0]["played"]]
    assert not others, f"rounds {others} played other frames than the first"
    assert not leaks(rounds), "\n".join(leaks(rounds).values())


def test_leaks_are_found(run: Callable[..., list[dict[str, Any]]]) -> None:
    assert leaks(run(None, 9, "leak")).keys() == {
        "bytes", "objects", "descriptors", "threads", "mappings of files", "other mappings",
        "temporary files",
    }  # fmt: skip
