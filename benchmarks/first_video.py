"""Measures the way from nothing to a video: empty environment and HOME, README's first command.

    python benchmarks/first_video.py > benchmarks/results/first-video.json
    sudo python benchmarks/first_video.py --root DIR > benchmarks/results/first-video-root.json

The first runs ``make demo`` in a copy of HEAD. The second installs wheels into a root that has
nothing but Python, and runs the same commands of vidc there, where no checkout, make, git or
compiler is. To make such a root:

    debootstrap --variant=minbase --include=python3,python3-venv bookworm DIR
    mount -t proc proc DIR/proc

Both pass on variables of pip (PIP_...) alone. CPU time counts all processes. ``load``
is the average of the minute before a step: it tells whether other work made a wall time longer.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidc.compiler.bench.fingerprint import fingerprint

ROOT = Path(__file__).parents[1]
PROMPT = "a red square moving left over grass"
SWITCH = "4:a blue square moving left over grass"
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def measured(name: str, command: Sequence[object], folder: Path, home: Path) -> dict[str, Any]:
    """Runs a command in an environment of its own; returns its wall and CPU time."""
    passed = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    load, started = os.getloadavg()[0], time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*map(str, command)], cwd=folder, check=True, stdout=sys.stderr,
        env=passed | {"HOME": str(home), "PATH": PATH, "PIP_NO_CACHE_DIR": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "step": name,
        "wall_seconds": time.monotonic() - started,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "load": load,
    }


def in_a_checkout(folder: Path, torch: str) -> tuple[list[dict[str, Any]], Path]:
    """Runs README's first command; returns its times and the video."""
    checkout, home = folder / "vidc", folder / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    make = ["make", f"TORCH={torch}", f"PYTHON={Path(sys.executable).resolve()}"]
    steps = [
        measured("install", [*make, ".venv/.build"], checkout, home),
        measured("make demo", [*make, "demo"], checkout, home),
    ]
    return steps, checkout / "out" / "demo.mp4"


def in_a_root(root: Path, torch: str) -> tuple[list[dict[str, Any]], Path]:
    """Runs the same commands from wheels in another root; returns their times and the video."""
    trial = root / "trial"
    trial.mkdir()
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    for source in (ROOT, ROOT / "configs" / "demo-package"):
        subprocess.run([*build, "--wheel-dir", trial, source], check=True, stdout=sys.stderr)
    (vidc,), (demo,) = (trial.glob(f"{name}-*.whl") for name in ("vidc", "vidc_demo"))
    inside = ["chroot", root, "/usr/bin/env", "-C", "/trial"]
    pip, run = [*inside, "venv/bin/pip", "install", "--quiet"], [*inside, "venv/bin/vidc"]
    commands: dict[str, list[object]] = {
        "venv": [*inside, "python3", "-m", "venv", "venv"],
        "install torch": [*pip, *torch.split()],
        "install vidc": [*pip, f"/trial/{vidc.name}[build]", f"/trial/{demo.name}"],
        "build": [*run, "build", "demo", "--gpu", "cpu", "--checkpoint", "demo", "-o", "demo"],
        "validate": [*run, "validate", "demo"],
        "run": [*run, "run", "demo", "-o", "demo.mp4", "--blocks", "8", "--prompt", PROMPT,
                "--switch", SWITCH],
    }  # fmt: skip
    home = Path("/trial")
    steps = [measured(name, words, trial, home) for name, words in commands.items()]
    return steps, trial / "demo.mp4"


def frames_of(video: Path) -> int:
    """Returns the number of frames that can be decoded."""
    import av

    with av.open(str(video)) as container:
        return sum(1 for _ in container.decode(video=0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="of a system with Python alone; needs chroot")
    parser.add_argument(
        "--torch",
        default="torch --index-url https://download.pytorch.org/whl/cpu",
        help="words of `pip install` for torch",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            if options.root is None:
                steps, video = in_a_checkout(Path(temporary), options.torch)
            else:
                steps, video = in_a_root(options.root.resolve(), options.torch)
            frames = frames_of(video)
        finally:
            if options.root is not None:
                shutil.rmtree(options.root / "trial", ignore_errors=True)
    document = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d"),
        "fingerprint": fingerprint(),
        "torch": options.torch,
        "root": "Python alone" if options.root else "empty environment and HOME",
        "steps": steps,
        "wall_seconds": sum(step["wall_seconds"] for step in steps),
        "cpu_seconds": sum(step["cpu_seconds"] for step in steps),
        "frames": frames,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
