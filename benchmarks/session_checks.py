"""Times a session's checks at the sizes of LongLive-1.3B (480x832, blocks of 3 latent frames).

    python benchmarks/session_checks.py --device cuda

Writes JSON to stdout: microseconds of the guard around one call, and milliseconds of the check of
each input (``door``), of the check of results, which the caller does not wait for (``look``), and
of ``isfinite().all()`` for comparison. Medians of 50, from an idle device until all is done.
"""

import argparse
import json
import time
from statistics import median

import torch

from vidc.compiler.bench.clock import Clock
from vidc.runtime.guard import Guard
from vidc.runtime.inputs import is_finite
from vidc.runtime.watch import Watch

SAMPLES, CALLS = 50, 1000
SHAPES = {
    "prompt": (1, 512, 4096),
    "noise": (4, 1, 3, 16, 60, 104),
    "latent": (1, 3, 16, 60, 104),
    "frames": (1, 12, 3, 480, 832),
}


def guard_us(device: torch.device) -> float:
    """CPU time of a call's guard, which a busy machine does not disturb."""
    guard, watches = Guard(device), [Watch(name, device) for name in ("latents", "frames")]
    found = []
    for _ in range(SAMPLES):
        start = time.process_time()
        for _ in range(CALLS):
            with guard.call("step", lambda: [watch.check() for watch in watches]):
                pass
        found.append((time.process_time() - start) / CALLS * 1e6)
    return median(found)


def checks_ms(shape: tuple[int, ...], device: torch.device) -> dict[str, float]:
    clock, watch, values = Clock(device), Watch("values", device), torch.randn(shape, device=device)
    works = {
        "door": lambda: is_finite(values),
        "look": lambda: watch.look(values),
        "isfinite": lambda: bool(values.isfinite().all()),
    }
    return {
        name: median(clock.time(work)[1] for _ in range(SAMPLES)) for name, work in works.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    found = {kind: checks_ms(shape, device) for kind, shape in SHAPES.items()}
    document = {"device": name, "threads": torch.get_num_threads(), "guard_us": guard_us(device)}
    print(json.dumps({**document, "ms": found}, indent=1))


if __name__ == "__main__":
    main()
