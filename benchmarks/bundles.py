"""Measures bundles side by side in one process: the first one, and others in turn with it.

    python benchmarks/bundles.py out/bf16 out/fp8 > benchmarks/results/longlive-1.3b-h200-fp8.json

A ratio is that of the first bundle's median over a bundle's: above 1 it is faster. Two bundles of
LongLive's size fit a GPU of 80 GB together.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.measure import Protocol, measure
from vidc.compiler.bench.metrics import Metric, Samples
from vidc.compiler.bench.run import workload
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.streams import of_bundle
from vidc.compiler.bench.verdict import judge
from vidc.compiler.validate.golden import read_prompts
from vidc.plugins.signature import Role
from vidc.runtime.bundle import Bundle, load
from vidc.runtime.manifest import Manifest, read_manifest
from vidc.runtime.strict import plain


def bytes_of(folder: Path, manifest: Manifest) -> dict[str, int]:
    """Bytes of a bundle's weights on disk, and of its states in memory."""
    files = [path for path in (folder / "weights").rglob("*") if path.is_file()]
    states = {
        spec.name: math.prod(spec.shape) * spec.torch_dtype.itemsize
        for engine in manifest.engines.values()
        for spec in engine.signature.tensors
        if spec.role is Role.STATE
    }
    return {
        "weights": sum(path.stat().st_size for path in files),
        "states": sum(states.values()),
    }


def compared(
    found: Mapping[str, Samples], metrics: Mapping[str, Metric], first: str
) -> dict[str, Any]:
    """Each bundle's figures, samples and verdicts against the first."""
    return {
        name: {
            metric: {
                **plain(Summary.of(samples)),
                "against first": judge(samples, found[first][metric]).to_json(),
                "samples": samples,
            }
            for metric, samples in own.items()
            if metrics[metric].judged
        }
        for name, own in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--samples", type=int, default=Protocol.samples)
    parser.add_argument("--warmup", type=int, default=Protocol.warmup)
    parser.add_argument("--seed", type=int, default=Protocol.seed)
    options = parser.parse_args()
    folders = {folder.name: folder for folder in options.bundles}
    if len(folders) < len(options.bundles):
        parser.error("bundles must have different names")
    manifests = {name: read_manifest(folder) for name, folder in folders.items()}
    loaded: dict[str, Bundle] = {name: load(folder) for name, folder in folders.items()}
    first = next(iter(loaded))
    device = loaded[first].device
    prompts = read_prompts(folders[first])
    protocol = Protocol(options.warmup, options.samples, options.seed)
    contestants = {name: of_bundle(bundle, options.seed) for name, bundle in loaded.items()}
    found = measure(contestants, device, prompts, protocol, lambda: None)
    document = {
        "schema": 1,
        "workloads": {name: workload(manifest) for name, manifest in manifests.items()},
        "bytes": {name: bytes_of(folders[name], manifests[name]) for name in folders},
        "protocol": vars(protocol),
        "gpu_state": gpu_state(device),
        "fingerprint": fingerprint(device, folders[first]),
        "streams": compared(found, contestants[first].decoding.metrics, first),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
