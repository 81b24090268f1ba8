"""Measures an installation: bytes on disk of vidc's dependencies, and import times.

    python benchmarks/install_size.py > benchmarks/results/install-size.json

Sizes are those of the installed files of all packages that vidc, or one of its extras, brings.
Import times are the CPU time of processes of their own, in turns.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from importlib import metadata

from packaging.requirements import Requirement

from vidc.compiler.bench.fingerprint import fingerprint

EXTRAS = ("", "build", "calibrate", "cuda", "docs", "hub", "rtx", "sign")
IMPORTS = {
    "nothing": "pass",
    "torch": "import torch",
    "vidc --help": "from vidc.compiler.cli import main; main(['--help'])",
    "import vidc.runtime": "import vidc.runtime",
    "vidc.runtime.load": "from vidc.runtime import load",
}


def closure(extra: str) -> set[str]:
    """Returns the names of all packages that vidc with an extra needs on this machine."""
    found: set[tuple[str, str]] = set()
    waiting = [("vidc", extra)]
    while waiting:
        entry = waiting.pop()
        if entry in found:
            continue
        found.add(entry)
        try:
            requirements = metadata.requires(entry[0]) or []
        except metadata.PackageNotFoundError:
            continue  # Such as a package for another processor.
        for text in requirements:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": entry[1]}):
                name = re.sub(r"[-_.]+", "-", requirement.name).lower()
                waiting += [(name, each) for each in ("", *requirement.extras)]
    return {name for name, _ in found}


def installed_bytes(name: str) -> int:
    """Returns the bytes of a package's files that exist; 0 for a package that is not installed."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return 0
    paths = (file.locate() for file in metadata.files(name) or [])
    return sum(path.stat().st_size for path in paths if path.is_file())


def seconds(code: str) -> float:
    """Returns the CPU time of a process that runs the code, which other work hardly changes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=6, help="of each import time")
    samples = parser.parse_args().samples
    sizes = {}
    for extra in EXTRAS:
        packages = {name: installed_bytes(name) for name in sorted(closure(extra))}
        largest = dict(sorted(packages.items(), key=lambda item: -item[1])[:5])
        sizes[extra or "base"] = {
            "packages": len(packages),
            "bytes": sum(packages.values()),
            "largest": largest,
        }
    rounds = [{name: seconds(code) for name, code in IMPORTS.items()} for _ in range(samples)]
    document = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d"),
        "fingerprint": fingerprint(),
        "sizes": sizes,
        "import_cpu_seconds": {name: [each[name] for each in rounds] for name in IMPORTS},
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
