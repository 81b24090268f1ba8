"""Uses a bundle in rounds, in a process of its own, and measures what the process holds.

A script: bundle, seed, number of rounds, and ``leak`` to plant leaks. Writes a JSON line a round.
"""

import ctypes
import gc
import hashlib
import json
import mmap
import os
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidc.plugins.errors import VidcError
from vidc.runtime import Bundle, load
from vidc.runtime.manifest import read_manifest
from vidc.runtime.programs.causal_video import TEXT_ENCODER

BLOCKS = 4
LARGEST = torch.finfo(torch.float32).max
WARM_UP = 6
"""Rounds after which every way of loading and closing was used and caches are full."""
_KEPT: list[Any] = []


def leak(number: int) -> None:
    """Keeps one of each kind of thing that ``held`` counts; the tensor has 256 KiB."""
    memory = os.memfd_create("left")
    os.truncate(memory, mmap.PAGESIZE)
    _KEPT.extend([torch.ones(2**16), mmap.mmap(memory, mmap.PAGESIZE)])
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    Path(tempfile.gettempdir(), f"left-{number}").touch()


def prompts(bundle: Bundle) -> list[Tensor | str]:
    generator = torch.Generator().manual_seed(1)
    embeds = torch.randn(2, *bundle.spec.prompt_shape, generator=generator)
    return ["a red fox", embeds[0]] if TEXT_ENCODER in bundle.engines else [*embeds]


def play(bundle: Bundle, session: Any, seed: int) -> Iterator[Tensor]:
    """Yields the frames of all ways to play a session, also after a failure and a reset."""
    first, second = prompts(bundle)
    session.prompt(first)
    yield from session.stream(BLOCKS)
    session.switch_prompt(second)
    yield session.decode(session.generate())
    generator = torch.Generator().manual_seed(seed)
    yield session.step(torch.randn(bundle.spec.noise_shape, generator=generator))
    yield session.fetch(session.step())()
    fails("VIDC-SESSION-NOT-FINITE", session.step, torch.full(bundle.spec.noise_shape, LARGEST))
    fails("VIDC-SESSION-NOT-FINITE", session.step)
    session.reset(seed=seed)
    session.prompt(second)
    yield session.step()


def fails(code: str, call: Callable[..., object], *arguments: object) -> None:
    found = "no error"
    try:
        call(*arguments)
    except VidcError as error:
        found = error.code
    if found != code:
        raise AssertionError(f"{found}, expected {code}")


def refusals(spec: Any) -> list[tuple[str, str, object]]:
    """Returns calls of a session that are refused and change nothing: code, method, argument."""
    noise, prompt = torch.zeros(spec.noise_shape), torch.zeros(spec.prompt_shape)
    return [
        ("VIDC-SESSION-NOISE", "step", noise[:, :, :0]),
        ("VIDC-SESSION-NOISE", "step", noise.long()),
        ("VIDC-SESSION-NOISE", "step", "noise"),
        ("VIDC-SESSION-FINITE", "step", noise * torch.nan),
        ("VIDC-PROMPT-SHAPE", "switch_prompt", prompt[:, :0]),
        ("VIDC-SESSION-FINITE", "switch_prompt", prompt + torch.inf),
        ("VIDC-SESSION-FRAMES", "fetch", None),
        ("VIDC-SESSION-NUMBER", "reset", -1),
    ]


def digests(path: Path, number: int, rng: random.Random) -> list[str]:
    """Returns digests of what two sessions of a bundle play in turns, refused calls among them."""
    with load(path, verify=("full", "fast", "off")[number % 3]) as bundle:
        sessions = [bundle.session(seed=seed) for seed in (1, 2)]
        hashes = [hashlib.sha256() for _ in sessions]
        playing = {n: play(bundle, session, n) for n, session in enumerate(sessions)}
        refused = refusals(bundle.spec)
        rng.shuffle(refused)
        while playing:
            turn = rng.choice([*playing])
            frames = next(playing[turn], None)
            if frames is None:
                del playing[turn]
                continue
            hashes[turn].update(frames.numpy().tobytes())
            if refused:
                code, method, argument = refused.pop()
                fails(code, getattr(sessions[turn], method), argument)
        fails("VIDC-SESSION-NUMBER", bundle.session, 2**63)
        if number % 2:
            sessions[0].close()
            fails("VIDC-SESSION-CLOSED", lambda: sessions[0].step())
    fails("VIDC-SESSION-CLOSED", lambda: sessions[1].step())
    fails("VIDC-BUNDLE-CLOSED", bundle.session)
    return [digest.hexdigest() for digest in hashes]


def damaged_copy(path: Path, folder: Path) -> Path:
    """Copies a bundle, and changes the file of the engine that is loaded last."""
    copy = shutil.copytree(path, folder)
    *_, last = read_manifest(copy).engines.values()
    file = copy / last.files[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return copy


def held() -> dict[str, list[str]]:
    """Names what the process holds, by kind."""
    mappings = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    folder = tempfile.gettempdir()
    return {
        "objects": [type(each).__name__ for each in gc.get_objects()],
        "descriptors": [each.readlink().as_posix() for each in _entries("/proc/self/fd")],
        "threads": [(each / "comm").read_text().strip() for each in _entries("/proc/self/task")],
        "mappings of files": [mapping[5] for mapping in mappings if len(mapping) > 5],
        "other mappings": [mapping[1] for mapping in mappings if len(mapping) == 5],
        "temporary files": [str(each.relative_to(folder)) for each in Path(folder).rglob("*")],
        "shared memory": [each.name for each in _entries("/dev/shm")],
    }


def _entries(folder: str) -> list[Path]:
    """Lists a folder, without the descriptor by which it is read."""
    return [entry for entry in [*Path(folder).iterdir()] if os.path.lexists(entry)]


def resident() -> int:
    """Returns the bytes of resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def main(path: Path, seed: int, rounds: int, leaks: bool) -> None:
    damaged = damaged_copy(path, Path(tempfile.mkdtemp(), "bundle"))
    gc.freeze()  # Only younger objects are counted and collected: that is faster.
    for number in range(rounds):
        rng = random.Random(f"soak {seed} {number}")
        fails("VIDC-BUNDLE-ALTERED", load, damaged)
        played = digests(path, number, rng)
        if leaks:
            leak(number)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        holds, size = held(), resident()
        if number <= WARM_UP:
            before = holds
        more = {kind: Counter(names) - Counter(before[kind]) for kind, names in holds.items()}
        counts = {kind: len(names) for kind, names in holds.items()}
        done = {"played": played, "held": {"bytes": size, **counts}, "more": more}
        print(json.dumps(done), flush=True)
        del holds  # The next round counts all but what it makes.


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["leak"])
