"""Builds a preset with every CPU backend and precision, and tabulates errors against PyTorch eager.

    python benchmarks/accuracy.py tiny > benchmarks/results/accuracy-tiny.json

Random weights; each build validates itself over a rollout with a prompt switch. Seconds are of one
build with an empty cache, not repeated.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vidc.compiler.bench.fingerprint import fingerprint

MATRIX = (
    ("onnxruntime", "fp32", ()),
    ("onnxruntime", "fp16", ("precision.vae=fp32",)),
    ("aoti", "fp32", ()),
    ("aoti", "bf16", ()),
    ("aoti", "fp16", ("precision.vae=fp32",)),
)
"""Convolutions in fp16 take PyTorch on a CPU minutes, so there the VAE stays in fp32."""


def measure(preset: str, backend: str, precision: str, settings: tuple[str, ...]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "bundle")
        command = [
            "build", preset, "--gpu", "cpu", "--backend", backend, "--precision", precision,
            "--random-weights", "1", "-o", str(bundle),
        ]  # fmt: skip
        for setting in settings:
            command += ["--set", setting]
        started = time.perf_counter()
        built = vidc(command, Path(folder, "cache"))
        seconds = time.perf_counter() - started
        row = {"backend": backend, "precision": precision, "settings": list(settings)}
        row["build_seconds"] = round(seconds, 1)
        if built.returncode:
            return row | {"failed": built.stderr.strip().splitlines()[-2:]}
        started = time.perf_counter()
        again = vidc(command, Path(folder, "cache"))
        row["second_build_seconds"] = round(time.perf_counter() - started, 2)
        assert again.returncode == 0
        validated = vidc(["validate", str(bundle), "--json"], Path(folder, "cache"))
        document = json.loads(validated.stdout)
        components = {
            gate["component"]: gate["value"]
            for gate in document["gates"]
            if (gate["where"], gate["metric"]) == ("component", "relative_l2")
        }
        psnr = [g["value"] for g in document["gates"] if g["metric"] == "psnr_db"]
        eager = document["eager"]
        return row | {
            "passed": document["passed"],
            "components": components,
            "worst_component": max(components.values()),
            "rollout": [block["relative_l2"] for block in document["rollout"]],
            "worst_block": max(block["relative_l2"] for block in document["rollout"]),
            "psnr_db": min((value for value in psnr if value is not None), default=None),
            "eager_worst_component": None if eager is None else max(eager["components"].values()),
            "eager_worst_block": None if eager is None else max(eager["rollout"]),
        }


def vidc(arguments: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from vidc.compiler.cli import main; main(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "VIDC_CACHE": str(cache)},
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="tiny")
    options = parser.parse_args()
    rows = []
    for backend, precision, settings in MATRIX:
        rows.append(measure(options.preset, backend, precision, settings))
        print(json.dumps(rows[-1]), file=sys.stderr)
    print(
        json.dumps({"preset": options.preset, "fingerprint": fingerprint(), "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
